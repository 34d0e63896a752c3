// Checks the layout of the page, and returns a list of what is wrong, in words.
(() => {
  const wrong = [];
  const say = (what, element) => {
    if (wrong.length < 40) wrong.push(what + ': ' + element.outerHTML.slice(0, 200));
  };
  document.querySelectorAll('details').forEach(one => one.open = true);

  const wide = document.documentElement.scrollWidth;
  if (wide > window.WIDTH) wrong.push('the page is ' + wide + ' wide, which exceeds ' + window.WIDTH);

  let cells = 0;
  for (const table of document.querySelectorAll('table')) {
    if (!table.caption || !table.caption.textContent.trim()) say('a table without a caption', table);
    const columns = [...table.tHead.rows[0].cells].reduce((sum, cell) => sum + cell.colSpan, 0);
    for (const body of table.tBodies) {
      if (!body.rows.length) say('an empty part of a table', body);
      for (const row of body.rows) {
        const here = [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0);
        if (here !== columns) say(here + ' of ' + columns + ' cells', row);
      }
    }
    for (const cell of table.querySelectorAll('th, td')) {
      cells += 1;
      if (!cell.textContent.trim()) say('an empty cell', cell);
      if (/NaN|undefined|null|inf\b/.test(cell.textContent)) say('no number', cell);
      if (cell.tagName === 'TH' && !cell.scope) say('a head without a scope', cell);
    }
  }

  let plots = 0;
  for (const svg of document.querySelectorAll('svg[role=img]')) {
    plots += 1;
    const box = svg.getBoundingClientRect();
    if (box.width < 100 || box.height < 30) say('a plot of no size', svg);
    for (const name of svg.getAttribute('aria-labelledby').split(' ')) {
      const label = document.getElementById(name);
      if (!label || !label.textContent.trim()) say('a plot without words', svg);
    }
    if (!svg.querySelector('.bar, .mark, .absent')) say('an empty plot', svg);
    const texts = [...svg.querySelectorAll('text')].map(text => [text, text.getBBox()]);
    const high = svg.viewBox.baseVal.height, across = svg.viewBox.baseVal.width;
    texts.forEach(([text, at], nth) => {
      if (at.x < -1 || at.x + at.width > across + 1 || at.y + at.height > high + 2) {
        say('text beyond its plot', text);
      }
      for (const [other, its] of texts.slice(nth + 1)) {
        const x = Math.min(at.x + at.width, its.x + its.width) - Math.max(at.x, its.x);
        const y = Math.min(at.y + at.height, its.y + its.height) - Math.max(at.y, its.y);
        // The boxes of adjacent lines overlap where no letter is.
        if (x > 1 && y > 5) say('text over ' + other.textContent, text);
      }
    });
  }

  const names = new Set();
  for (const element of document.querySelectorAll('[id]')) {
    if (names.has(element.id)) say('a duplicate id', element);
    names.add(element.id);
  }
  for (const link of document.querySelectorAll('a')) {
    const to = link.getAttribute('href');
    if (!to.startsWith('#') || !document.getElementById(to.slice(1))) say('a broken link', link);
  }
  const loaded = performance.getEntriesByType('resource').map(one => one.name);
  if (loaded.length) wrong.push('loaded: ' + loaded.join(' '));

  // The contrast by the formula of WCAG 2: 4.5 is the minimum for text.
  const parse = color => (color.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const seen = new Set();
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    if (style.visibility === 'hidden') continue;
    const color = element instanceof SVGElement ? style.fill : style.color;
    const under = behind(element);
    const pair = color + ' on ' + under;
    if (seen.has(pair)) continue;
    seen.add(pair);
    const [a, b] = [light(parse(color)), light(under)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) say('contrast ' + ratio.toFixed(2) + ', ' + pair, element);
  }

  const published = document.querySelectorAll('[data-published]').length;
  return {wrong, cells, plots, published, colors: seen.size};
})()
