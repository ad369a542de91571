# Homebrew's formula: the release's own binaries. `make release` fills it in.
class Memroom < Formula
  desc "Keeps deep-learning training from running out of memory"
  version "@VERSION@"
  license "Apache-2.0"

  on_macos do
    on_arm do
      url "@BASE@/memroom-darwin-arm64"
      sha256 "@SHA memroom-darwin-arm64@"
    end
    on_intel do
      url "@BASE@/memroom-darwin-amd64"
      sha256 "@SHA memroom-darwin-amd64@"
    end
  end
  on_linux do
    on_arm do
      url "@BASE@/memroom-linux-arm64"
      sha256 "@SHA memroom-linux-arm64@"
    end
    on_intel do
      url "@BASE@/memroom-linux-amd64"
      sha256 "@SHA memroom-linux-amd64@"
    end
  end

  def install
    bin.install Dir["memroom-*"].first => "memroom"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/memroom version")
  end
end
