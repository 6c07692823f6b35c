// The patches of an image that a patch, a token in front of them or all together look at.

const shownImage = byId('original');

// Whether the model reads the class token; else it averages the patches.
const classed = () => image.front.includes('class');

// What a head reads at `query` (an index, or 'mean' for all queries, or all patches if these are averaged):
// {patches: Float64Array, token: weight of the class token}.
function readOut(kind, weights, query, lifted) {
  const across = kind.keys.length, first = image.front.length, row = new Float64Array(across);
  const queries = query === 'mean' ? [...kind.queries.keys()].slice(classed() ? 0 : first) : [query];
  for (const t of queries) {
    for (let s = 0; s < across; s++) row[s] += weight(kind, weights[t * across + s]) / queries.length;
  }
  const patches = row.slice(first);
  if (lifted) { // every patch has a positive weight in a rollout
    const least = Math.min(...patches);
    patches.forEach((x, i) => { patches[i] = x - least; });
  }
  return {patches, token: classed() ? row[0] : null, plain: row.slice(first)};
}

// The same in -1..1 of the largest, for the square of a head.
function readSquare(kind, weights, query, lifted) {
  const {patches} = readOut(kind, weights, query, lifted);
  const most = patches.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-12);
  return patches.map((x) => x / most);
}

// Draws the image in grey, and over each patch a stripe for each of `heads`, [{weights, colour, lifted}].
function drawImage(kind, heads, query, least) {
  const canvas = byId('image'), scale = window.devicePixelRatio || 1, box = byId('picture');
  const room = Math.max(160, Math.min(0.7 * box.clientWidth, box.clientHeight - byId('chips').offsetHeight - 40, 720));
  const side = Math.floor(room / Math.max(image.rows, image.columns));
  const width = side * image.columns, height = side * image.rows;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const small = shownImage.naturalWidth <= 100;
  context.imageSmoothingEnabled = !small;
  shownImage.className = small ? 'small' : '';
  shownImage.width = Math.round(0.28 * box.clientWidth);
  context.fillStyle = '#808080';
  context.fillRect(0, 0, width, height);
  context.filter = 'grayscale(1)';
  context.globalAlpha = 0.6; // less contrast, so that the colours are seen on black and on white
  context.drawImage(shownImage, 0, 0, width, height);
  context.globalAlpha = 1;
  context.filter = 'none';
  heads.forEach(({weights, colour, lifted}, number) => {
    const shares = readSquare(kind, weights, query, lifted);
    shares.forEach((share, i) => {
      if (Math.abs(share) < least || share === 0) return;
      const x = (i % image.columns) * side, y = Math.floor(i / image.columns) * side, stripe = side / heads.length;
      context.fillStyle = `rgba(${colour}, ${0.85 * Math.abs(share)})`;
      context.fillRect(x + number * stripe, y, stripe, side);
      if (share < 0) { // a cross
        context.strokeStyle = '#ffffff';
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(x, y); context.lineTo(x + side, y + side);
        context.moveTo(x + side, y); context.lineTo(x, y + side);
        context.stroke();
      }
    });
  });
  const index = query === 'mean' ? -1 : query - image.front.length;
  if (index >= 0) {
    const x = (index % image.columns) * side, y = Math.floor(index / image.columns) * side;
    for (const [colour, inner] of [['#000000', 1], ['#ffffff', 3]]) {
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.strokeRect(x + inner, y + inner, side - 2 * inner, side - 2 * inner);
    }
  }
}

// The position of the patch under the pointer.
function patchAt(event) {
  const box = byId('image').getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / box.width * image.columns);
  const row = Math.floor((event.clientY - box.top) / box.height * image.rows);
  const inside = column >= 0 && row >= 0 && column < image.columns && row < image.rows;
  return inside ? row * image.columns + column + image.front.length : null;
}
