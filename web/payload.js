// The data of a self-contained page: base64 of gzip of [length of the header, header as JSON,
// arrays].

const types = { f64: Float64Array, i32: Int32Array, u32: Uint32Array, u8: Uint8Array };

/**
 * Decodes the text of the page's data element. Arrays named in the header take their place in it.
 */
export async function decode(text) {
  return unpack(await decoded(text).arrayBuffer());
}

/** Decodes the data of a page that is JSON as a whole. */
export async function decodeJSON(text) {
  return decoded(text).json();
}

function decoded(text) {
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** Decodes the data as the server sends it. */
export function unpack(raw) {
  const length = new DataView(raw).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, length)));
  const base = 4 + length + padding(4 + length);
  for (const device of header.devices) {
    for (const [name, array] of Object.entries(device.arrays)) {
      device[name] = new types[array.type](raw, base + array.offset, array.length);
    }
    delete device.arrays;
  }
  return header;
}

function padding(n) {
  return (8 - (n % 8)) % 8;
}
