// What is chosen, and the parts of the page that show it.

const MOST_SHOWN = 6;
const state = {
  kind: 0, // of attention
  layer: 0, head: 0, // of the kind
  pins: [], // [{layer, head, colour}] that stay when others are chosen
  token: null, kept: false, // {side, index} under the pointer, and whether it was clicked
  query: 0, // of an image: a position, or 'mean'
  least: 0, // of the square roots of the shares that are drawn
};
const kindNow = () => data.kinds[state.kind];
const same = (one, other) => one.layer === other.layer && one.head === other.head;

// The pinned heads and the chosen one: [{layer, head, colour, pinned}], each with a colour of its own.
function shown() {
  const found = state.pins.map((pin) => ({...pin, pinned: true}));
  if (kindNow().heads[state.layer].length && !found.some((one) => same(one, state))) {
    let colour = 0;
    while (found.some((one) => one.colour === colour)) colour++;
    found.push({layer: state.layer, head: state.head, colour, pinned: false});
  }
  return found;
}

function element(tag, parent, text = '', properties = {}) {
  const made = Object.assign(document.createElement(tag), properties);
  made.textContent = text;
  parent.append(made);
  return made;
}

// All that depends on the kind of attention: squares of the heads, tokens, names.
function showKind() {
  const kind = kindNow();
  byId('kinds').querySelectorAll('button').forEach((button, i) => button.setAttribute('aria-pressed', i === state.kind));
  byId('down').textContent = kind.down;
  byId('across').textContent = kind.across;
  showGrid();
  if (image) {
    showChips();
  } else {
    for (const [id, tokens, side] of [['queries', kind.queries, 'query'], ['tokens', kind.keys, 'key']]) {
      const list = byId(id);
      list.replaceChildren(...tokens.map((token, index) => {
        const item = document.createElement('li');
        item.textContent = token || ' ';
        item.title = `${token} (${index})`;
        item.dataset.side = side;
        item.dataset.index = index;
        return item;
      }));
    }
    byId('queries').classList.toggle('made', kind.produced);
    byId('lines').classList.toggle('long', [...kind.queries, ...kind.keys].some((token) => token.length > 20));
    byId('lines').scrollTop = 0;
  }
  showHeads();
}

function showGrid() {
  const kind = kindNow(), grid = byId('grid');
  const own = kind.layers.filter((_, i) => !(kind.rollout && i === kind.layers.length - 1));
  const columns = Math.max(1, ...own.map((layer) => layer.heads.length));
  const side = columns > 8 ? 34 : columns > 4 ? 56 : 84;
  grid.replaceChildren();
  grid.style.gridTemplateColumns = `max-content repeat(${columns}, ${side + 10}px)`;
  if (own.every((layer) => layer.heads.every((name, i) => name === String(i)))) {
    element('span', grid, 'head', {className: 'name'});
    for (let i = 0; i < columns; i++) element('span', grid, i, {className: 'top'});
  }
  kind.layers.forEach((layer, i) => {
    const name = element('span', grid, '', {className: 'name'});
    element('b', name, layer.label);
    if (layer.highest !== null && layer.entropy !== null) name.append(`at most ${layer.highest.toFixed(2)}`);
    layer.heads.forEach((head, j) => {
      const button = element('button', grid, '', {type: 'button', title: called(kind, i, j)});
      Object.assign(button.dataset, {layer: i, head: j});
      element('canvas', button).dataset.side = side;
      const entropy = entropyOf(kind, i, j);
      element('span', button, entropy === null ? '–' : entropy.toFixed(2));
      if (entropy !== null && layer.highest) {
        element('b', element('i', button)).style.width = `${Math.min(100, 100 * entropy / layer.highest)}%`;
      }
      button.setAttribute('aria-label', called(kind, i, j) + (entropy === null ? '' : `, entropy ${entropy.toFixed(2)} nats`));
    });
    for (let j = layer.heads.length; j < columns; j++) element('span', grid);
  });
  drawGrid();
}

function drawGrid() {
  const kind = kindNow(), ramps = [ramp('--head-0'), ramp('--head-1')];
  for (const button of byId('grid').querySelectorAll('button')) {
    const layer = Number(button.dataset.layer), weights = kind.heads[layer][Number(button.dataset.head)];
    const canvas = button.firstChild;
    if (image) {
      const shares = readSquare(kind, weights, state.query, isRollout(layer));
      drawSquare(canvas, {width: image.columns, height: image.rows, integers: shares}, 1, ramps);
    } else {
      weights.square ||= pooled(weights, kind.queries.length, kind.keys.length, Number(canvas.dataset.side));
      drawSquare(canvas, weights.square, kind.steps, ramps);
    }
  }
}

const isRollout = (layer) => kindNow().rollout && layer === kindNow().layers.length - 1;

// All that depends on the chosen heads.
function showHeads() {
  const kind = kindNow(), heads = shown();
  for (const button of byId('grid').querySelectorAll('button')) {
    const place = {layer: Number(button.dataset.layer), head: Number(button.dataset.head)};
    const one = heads.find((head) => same(head, place));
    button.classList.toggle('shown', Boolean(one));
    button.classList.toggle('here', same(state, place));
    button.setAttribute('aria-current', same(state, place));
    button.style.setProperty('--colour', one ? `var(--head-${one.colour})` : '');
  }
  const legend = byId('legend');
  legend.replaceChildren();
  for (const one of heads) {
    const entropy = entropyOf(kind, one.layer, one.head);
    const button = element('button', legend, called(kind, one.layer, one.head), {
      type: 'button', className: one.pinned ? 'pinned' : '', title: one.pinned ? 'unpin' : 'pin'});
    if (entropy !== null) element('small', button, `${entropy.toFixed(2)} nats`);
    button.style.setProperty('--colour', `var(--head-${one.colour})`);
    button.onclick = () => {
      pin(one);
      showHeads();
    };
  }
  draw();
}

// The weights of the chosen heads.
function draw() {
  const kind = kindNow(), places = shown();
  const heads = places.map(({layer, head, colour}) => ({
    weights: kind.heads[layer][head], colour: rgb(`--head-${colour}`).join(', '), lifted: isRollout(layer)}));
  if (!heads.length) {
    byId('status').textContent = 'This layer has no head left.';
    return;
  }
  byId('from').textContent = image ? `${(100 * state.least).toFixed(0)} %` : percent(kind.largest * state.least ** 2);
  if (image) {
    drawImage(kind, heads, state.query, state.least);
    const tokens = heads.map((one) => readOut(kind, one.weights, state.query).token).filter((x) => x !== null);
    say('A patch is coloured by its weight as a share of the largest' + (kind.rollout ? ' (rollout: above the least)' : '') + '.' +
      (tokens.length ? ` The class token gets ${tokens.map(percent).join(', ')}.` : ''));
    return;
  }
  const [drawn, all] = drawLines(kind, heads, state.least, state.token);
  const here = kind.heads[state.layer][state.head];
  shadeTokens(kind, heads, here || heads[0].weights, state.token);
  const least = percent(kind.largest * (0.5 / kind.steps) ** 2);
  const whose = state.token && heads.length > 1 ? `; numbers are those of ${called(kind, state.layer, state.head)}` : '';
  say(`${drawn < all ? `the strongest ${drawn.toLocaleString('en')} of ${all.toLocaleString('en')}` : drawn.toLocaleString('en')} ` +
    `weights in view; width and opacity grow with the square root of a weight, kept in ${kind.steps} steps ` +
    `(under ${least} is shown as 0)${kind.signed ? '; negative ones are dashed' : ''}${whose}.`);
}

function say(text) {
  byId('status').textContent = text;
}

// The queries of an image that are no patches.
function showChips() {
  const chips = byId('chips');
  chips.replaceChildren('what');
  const add = (text, query) => {
    const button = element('button', chips, text, {type: 'button'});
    button.setAttribute('aria-pressed', state.query === query);
    button.onclick = () => { ask(query); };
  };
  image.front.forEach((name, i) => { add(name.startsWith('register') ? name : `the ${name} token`, i); });
  add(classed() ? 'all positions together' : 'all patches together', 'mean');
  const first = image.front.length;
  if (state.query !== 'mean' && state.query >= first) add(`patch ${kindNow().queries[state.query]}`, state.query);
  chips.append('attend' + (state.query === 'mean' ? '' : 's') + ' to; click a patch to ask it');
}

function ask(query) {
  state.query = query;
  showChips();
  drawGrid();
  draw();
}

function choose(layer, head) {
  Object.assign(state, {layer, head});
  showHeads();
  const button = byId('grid').querySelector('button.here');
  if (button) button.scrollIntoView({block: 'nearest', inline: 'nearest'});
}

// Pins a head, or unpins it.
function pin(place) {
  const others = state.pins.filter((one) => !same(one, place));
  if (others.length < state.pins.length) {
    state.pins = others;
  } else if (state.pins.length < MOST_SHOWN - 1) {
    const now = shown().find((one) => same(one, place));
    const taken = shown().map((one) => one.colour);
    const free = [0, 1, 2, 3, 4, 5].find((colour) => !taken.includes(colour));
    state.pins.push({layer: place.layer, head: place.head, colour: now ? now.colour : free});
  }
}

function chooseKind(kind) {
  if (kind === state.kind || kind >= data.kinds.length) return;
  const layer = Math.max(0, data.kinds[kind].layers.findIndex((one) => one.heads.length));
  Object.assign(state, {kind, layer, head: 0, pins: [], token: null, kept: false});
  showKind();
}

// The next layer with heads, up or down, or the next head.
function move(down, right) {
  const {heads} = kindNow();
  let {layer, head} = state;
  if (right) head = (head + right + heads[layer].length) % heads[layer].length;
  if (down) {
    do layer = (layer + down + heads.length) % heads.length; while (!heads[layer].length);
  }
  choose(layer, Math.min(head, heads[layer].length - 1));
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  byId('theme').textContent = dark ? 'light' : 'dark';
  if (data.kinds[0].heads) {
    drawGrid();
    showHeads();
  }
}

const MOVES = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || (event.target.id === 'slider' && event.key !== 'Escape')) return;
  if (MOVES[event.key]) {
    move(...MOVES[event.key]);
  } else if (event.key === ' ') {
    pin(state);
    showHeads();
  } else if (event.key === 'Escape') {
    Object.assign(state, {pins: [], token: null, kept: false});
    showHeads();
  } else if (event.key === 'd') {
    byId('theme').click();
  } else if (event.key === 'r' && kindNow().rollout) {
    choose(kindNow().layers.length - 1, 0);
  } else if (/^[1-9]$/.test(event.key)) {
    chooseKind(Number(event.key) - 1);
  } else {
    return;
  }
  event.preventDefault();
}

function listen() {
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  dark.onchange = () => setTheme(dark.matches);
  byId('theme').onclick = () => setTheme(document.documentElement.dataset.theme !== 'dark');
  document.addEventListener('keydown', press);
  document.addEventListener('keyup', (event) => { if (event.key === ' ') event.preventDefault(); }); // no click of a button
  byId('grid').onclick = (event) => {
    const button = event.target.closest('button');
    if (!button) return;
    const place = {layer: Number(button.dataset.layer), head: Number(button.dataset.head)};
    if (event.shiftKey || event.ctrlKey || event.metaKey) pin(place);
    choose(place.layer, place.head);
  };
  byId('slider').oninput = (event) => { state.least = event.target.value / 100; draw(); };
  let waiting = false;
  const later = () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; draw(); });
    waiting = true;
  };
  byId('lines').addEventListener('scroll', later);
  window.addEventListener('resize', later);
  const tokenAt = (event) => {
    const item = event.target.closest('li');
    return item && {side: item.dataset.side, index: Number(item.dataset.index)};
  };
  byId('lines').onmouseover = (event) => {
    if (!state.kept) { state.token = tokenAt(event); later(); }
  };
  byId('lines').onmouseleave = () => { if (!state.kept) { state.token = null; later(); } };
  byId('lines').onclick = (event) => {
    const token = tokenAt(event), again = state.kept && token && token.side === state.token.side && token.index === state.token.index;
    Object.assign(state, {token: again ? null : token, kept: Boolean(token) && !again});
    draw();
  };
  byId('image').onclick = (event) => { if (patchAt(event) !== null) ask(patchAt(event)); };
  byId('image').onmousemove = (event) => {
    const kind = kindNow(), patch = patchAt(event);
    if (patch === null) return;
    say(`patch ${kind.keys[patch]}: ` + shown().map(({layer, head}) => {
      const {plain} = readOut(kind, kind.heads[layer][head], state.query);
      return `${percent(plain[patch - image.front.length])} in ${called(kind, layer, head)}`;
    }).join('; '));
  };
  byId('image').onmouseleave = draw;
}

async function begin() {
  setTheme(window.matchMedia('(prefers-color-scheme: dark)').matches);
  if (typeof DecompressionStream === 'undefined') {
    say('This browser is too old for the page; it takes Chrome 80, Firefox 113, Safari 16.4 or a later one.');
    return;
  }
  deal(await inflated());
  data.kinds.forEach((kind, i) => {
    if (data.kinds.length > 1) {
      element('button', byId('kinds'), kind.title || 'attention', {type: 'button'}).onclick = () => chooseKind(i);
    }
  });
  byId('keys').replaceChildren();
  const also = [['d', 'light or dark'], ...(data.kinds.some((kind) => kind.rollout) ? [['r', 'attention rollout']] : []),
    ...(data.kinds.length > 1 ? [[`1–${data.kinds.length}`, 'kind of attention']] : [])];
  also.forEach(([key, text], i) => {
    element('kbd', byId('keys'), key);
    byId('keys').append(` ${text}${i < also.length - 1 ? ', ' : '.'}`);
  });
  state.layer = Math.max(0, kindNow().layers.findIndex((layer) => layer.heads.length));
  byId('lines').hidden = Boolean(image);
  byId('names').hidden = Boolean(image);
  byId('picture').hidden = !image;
  if (image) {
    document.documentElement.dataset.over = 'image';
    byId('square').textContent = ' and shows the patches that it looks at';
    state.query = classed() ? 0 : 'mean';
    shownImage.src = image.source;
    await shownImage.decode();
  }
  listen();
  showKind();
  document.documentElement.dataset.ready = 'yes';
}

begin();
