// Colours of the categories, the same in every view. They differ in lightness too, for those who
// do not see hues.

export const categories = [
  "unknown",
  "weights",
  "gradients",
  "optimizer",
  "activations",
  "loss",
  "temporary",
  "workspace",
  "input",
];

const colours = {
  weights: "#3b6fb6",
  gradients: "#d9822b",
  optimizer: "#7a4fa3",
  activations: "#3f9f6b",
  loss: "#c9423a",
  temporary: "#d7b93c",
  workspace: "#7d8a97",
  input: "#45b5c4",
  unknown: "#a9a39a",
  rest: "#cfcac2",
};

export function colour(category) {
  return colours[category] || colours.unknown;
}

/** The colour as a little-endian RGBA word for ImageData, with lightness scaled by shade. */
export function word(category, shade = 1) {
  const hex = colour(category);
  const [r, g, b] = [1, 3, 5].map((i) =>
    Math.min(255, Math.round(parseInt(hex.slice(i, i + 2), 16) * shade)),
  );
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}
