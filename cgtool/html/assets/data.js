"use strict";
// The data of the page, as packing.py wrote them: a header of JSON, and columns of numbers.

/** The header, with `columns` as typed arrays by name. */
async function readData() {
  const packed = bytesOfBase64(document.getElementById("data").textContent);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const body = bytes.subarray(4 + length);
  for (const [name, column] of Object.entries(header.columns)) {
    header.columns[name] = readColumn(body, column);
  }
  return header;
}

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = characters.charCodeAt(at);
  return bytes;
}

const WIDTHS = { B: 1, H: 2, I: 4, d: 8, f: 4 };

/** Its bytes lie in planes: all lowest ones first. */
function readColumn(body, { type, length, at, rising, small }) {
  const width = WIDTHS[type];
  const bytes = new Uint8Array(length * width);
  for (let plane = 0; plane < width; plane++) {
    const from = at + plane * length;
    for (let row = 0, to = plane; row < length; row++, to += width) bytes[to] = body[from + row];
  }
  const raw = new { B: Uint8Array, H: Uint16Array, I: Uint32Array, d: Float64Array, f: Float32Array }[
    type
  ](bytes.buffer);
  if (type === "f") return raw;
  const values = small ? new Int32Array(length) : new Float64Array(length);
  let sum = 0;
  for (let row = 0; row < length; row++) {
    const value = raw[row];
    // A difference of either sign is a small number: 0, -1, 1, -2, 2.
    if (rising) sum += value % 2 ? -(value + 1) / 2 : value / 2;
    values[row] = (rising ? sum : value) - 1;
  }
  return values;
}
