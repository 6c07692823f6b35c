'use strict';
// What the page was written with: kinds of attention, and the weights of all of them as one array of bytes.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId('data').textContent);
const image = data.image;

// The bytes of the weights, inflated.
async function inflated() {
  const text = atob(byId('weights').textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Response(stream).arrayBuffer();
}

// Gives every kind its weights: kind.heads[layer][head] is an array of T·S integers, a row for each query.
function deal(buffer) {
  for (const kind of data.kinds) {
    const size = kind.queries.length * kind.keys.length;
    const all = kind.signed ? new Int8Array(buffer) : new Uint8Array(buffer);
    let begin = kind.begin;
    kind.heads = kind.layers.map((layer) => layer.heads.map(() => {
      begin += size;
      return all.subarray(begin - size, begin);
    }));
  }
}

// The weight that an integer stands for.
function weight(kind, integer) {
  return Math.sign(integer) * kind.largest * (integer / kind.steps) ** 2;
}

function percent(value) {
  const share = 100 * value;
  return `${Math.abs(share) >= 9.95 || share === 0 ? share.toFixed(0) : share.toPrecision(2)} %`;
}

// How a head is called in a sentence.
function called(kind, layer, head) {
  const {label, heads} = kind.layers[layer];
  return /^\d+$/.test(heads[head]) ? `${label}, head ${heads[head]}` : `${label}, ${heads[head]}`;
}

function entropyOf(kind, layer, head) {
  const {entropy} = kind.layers[layer];
  return entropy === null ? null : entropy[head];
}

// '#rrggbb' of a colour of the page as [r, g, b].
function rgb(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}
