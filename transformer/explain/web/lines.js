// Lines from the queries on the left to the keys on the right, and the small squares of the heads.

const ROW = 22, ABOVE = 6; // pixels of a token, and above the first one
const MOST_LINES = 600; // of a head, the strongest ones; those of a token under the pointer are all drawn
const SHADES = 10;

// The lines of one head that are to be drawn: [[query, key, integer]..] without those under `least`, and how many there are.
function linesOf(kind, weights, least, chosen, rows) {
  const across = kind.keys.length, inView = (i) => i >= rows[0] && i <= rows[1];
  const counts = new Uint32Array(kind.steps + 1);
  const each = (use) => {
    if (chosen && chosen.side === 'key') {
      for (let t = 0; t < kind.queries.length; t++) use(t, chosen.index, weights[t * across + chosen.index]);
      return;
    }
    const [first, last] = chosen ? [chosen.index, chosen.index] : [0, kind.queries.length - 1];
    for (let t = first; t <= last; t++) {
      const all = chosen || inView(t), from = all ? 0 : Math.max(0, rows[0]), to = all ? across - 1 : Math.min(across - 1, rows[1]);
      for (let s = from; s <= to; s++) use(t, s, weights[t * across + s]);
    }
  };
  each((t, s, integer) => { counts[Math.abs(integer)]++; });
  let bound = Math.max(1, Math.ceil(least * kind.steps)), found = 0, all = 0;
  for (let size = kind.steps; size >= bound; size--) all += counts[size];
  let size = kind.steps + 1;
  while (size > bound && (chosen || found + counts[size - 1] <= MOST_LINES)) found += counts[--size];
  const lines = [];
  const take = (wanted) => each((t, s, integer) => {
    if (wanted(Math.abs(integer)) && (chosen || lines.length < MOST_LINES)) lines.push([t, s, integer]);
  });
  take((one) => one >= size);
  if (size > bound && !chosen) take((one) => one === size - 1);
  return {lines, all};
}

// Draws the lines of `heads`, [{weights, colour}], on the canvas; returns how many of how many.
function drawLines(kind, heads, least, chosen) {
  const canvas = byId('canvas'), box = byId('lines'), scale = window.devicePixelRatio || 1;
  const height = box.clientHeight, width = canvas.clientWidth, top = box.scrollTop;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const rows = [Math.floor((top - ABOVE) / ROW), Math.ceil((top + height - ABOVE) / ROW)];
  let drawn = 0, every = 0;
  heads.forEach(({weights, colour}, number) => {
    const {lines, all} = linesOf(kind, weights, least, chosen, rows);
    const apart = (number - (heads.length - 1) / 2) * Math.min(3, 14 / heads.length);
    const y = (i) => ABOVE + (i + 0.5) * ROW + apart - top;
    const shades = Array.from({length: 2 * SHADES}, () => []); // negative weights, which are dashed, in the second half
    for (const line of lines) {
      const shade = Math.min(SHADES - 1, Math.floor(SHADES * Math.abs(line[2]) / kind.steps));
      shades[line[2] < 0 ? SHADES + shade : shade].push(line);
    }
    context.strokeStyle = `rgb(${colour})`;
    shades.forEach((some, i) => {
      if (!some.length) return;
      const strength = (i % SHADES + 0.7) / SHADES;
      context.globalAlpha = Math.min(1, 0.1 + 0.9 * strength);
      context.lineWidth = 0.7 + 2.3 * strength;
      context.setLineDash(i < SHADES ? [] : [5, 4]);
      context.beginPath();
      for (const [t, s] of some) {
        const from = y(t), to = y(s);
        context.moveTo(0, from);
        context.bezierCurveTo(0.45 * width, from, 0.55 * width, to, width, to);
      }
      context.stroke();
    });
    drawn += lines.length;
    every += all;
  });
  return [drawn, every];
}

// Shades the tokens that a chosen token looks at, or that look at it, a stripe for each head, and writes the weights of `here`.
function shadeTokens(kind, heads, here, chosen) {
  for (const side of ['query', 'key']) {
    const items = byId(side === 'query' ? 'queries' : 'tokens').children, across = kind.keys.length;
    for (let i = 0; i < items.length; i++) {
      const item = items[i], self = chosen && chosen.side === side, place = chosen &&
        (side === 'key' ? chosen.index * across + i : i * across + chosen.index);
      item.classList.toggle('chosen', Boolean(self && chosen.index === i));
      if (!chosen || self) {
        if (item.dataset.weight !== undefined) { delete item.dataset.weight; item.style.background = ''; }
        continue;
      }
      const stripe = 100 / heads.length;
      item.style.background = `linear-gradient(${heads.map(({weights, colour}, n) =>
        `rgba(${colour}, ${0.75 * Math.abs(weights[place]) / kind.steps}) ${n * stripe}% ${(n + 1) * stripe}%`)})`;
      const value = weight(kind, here[place]);
      item.dataset.weight = Math.abs(value) >= 0.005 * kind.largest ? percent(value) : '';
    }
  }
}

// 256 colours from the panel's to that of a head, as little-endian pixels.
function ramp(name) {
  const from = rgb('--panel'), to = rgb(name);
  return Uint32Array.from({length: 256}, (_, i) => {
    const [r, g, b] = from.map((x, c) => Math.round(x + (to[c] - x) * i / 255));
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
}

// The pixels of the square of a head, integers [rows, columns]: the largest of those that share a pixel. {width, height, integers}
function pooled(integers, rows, columns, side) {
  const most = Math.max(rows, columns, side), width = Math.max(1, Math.round(columns * Math.min(1, side / most)));
  const height = Math.max(1, Math.round(rows * Math.min(1, side / most)));
  const found = new integers.constructor(width * height);
  const place = Uint16Array.from({length: columns}, (_, s) => Math.floor(s * width / columns));
  for (let t = 0; t < rows; t++) {
    const begin = Math.floor(t * height / rows) * width, row = t * columns;
    for (let s = 0; s < columns; s++) {
      const one = integers[row + s], at = begin + place[s], best = found[at];
      if (one > 0 ? one > best && one > -best : -one > best && one < best) found[at] = one;
    }
  }
  return {width, height, integers: found};
}

// Paints the square of a head, whose pixels are integers of -steps..steps.
function drawSquare(canvas, square, steps, ramps) {
  const {width, height, integers} = square, unit = canvas.dataset.side / Math.max(width, height);
  canvas.width = width;
  canvas.height = height;
  canvas.style.width = `${Math.max(8, Math.round(width * unit))}px`;
  canvas.style.height = `${Math.max(8, Math.round(height * unit))}px`;
  const context = canvas.getContext('2d'), picture = context.createImageData(width, height);
  const pixels = new Uint32Array(picture.data.buffer);
  for (let i = 0; i < pixels.length; i++) {
    pixels[i] = ramps[integers[i] < 0 ? 1 : 0][Math.round(255 * Math.abs(integers[i]) / steps)];
  }
  context.putImageData(picture, 0, 0);
}
