"use strict";
(() => {
  const $ = (selector, root) => (root || document).querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];

  const theme = $("#theme");
  theme.onclick = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };

  const source = $("#data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  if (!data.sims.length) return;
  const FEW = 200;

  // A row: what the kernel is, from data.kernels, and what it takes on this GPU, from sims[].rows.
  const [NAME, CLASS, PHASE, MODULE, SHAPES, COUNT, FLOPS, READ, WRITE] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
  const rowsOf = (sim) => {
    const total = sim.rows.reduce((sum, r) => sum + r[2], 0);
    return sim.rows.map((r) => {
      const k = data.kernels[r[0]];
      const bytes = k[READ] + k[WRITE];
      const flops = Math.max(0, k[FLOPS]);
      return {
        kernel: k[NAME], class: k[CLASS], phase: k[PHASE], module: k[MODULE] || "(top)", shapes: k[SHAPES],
        count: k[COUNT], flops, unmodeled: k[FLOPS] < 0, bytes, intensity: bytes ? flops / bytes : 0,
        bound: r[1], time: r[2], compute: r[3], memory: r[4], overhead: r[5], wall: data.walls[r[6]],
        share: total ? r[2] / total : 0, rate: r[2] ? flops / r[2] : 0,
      };
    });
  };
  const tables = data.sims.map(rowsOf);

  // -- numbers
  const SI = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const si = (v, unit) => {
    const [scale, prefix] = SI.find(([s]) => Math.abs(v) >= s) || SI[SI.length - 1];
    return `${(v / scale).toPrecision(3).replace(/e\+?\d+$/, "")} ${prefix}${unit}`;
  };
  const seconds = (v) => {
    const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"]].find(([s]) => v >= s) || [1e-9, "ns"];
    return `${(v / scale).toFixed(2)} ${unit}`;
  };

  // -- state, kept in the address so that a view can be linked
  const state = { sim: 0, sort: "time", dir: "desc", filter: "" };
  const readHash = () => {
    const query = new URLSearchParams(location.hash.slice(1));
    const at = data.sims.findIndex((s) => s.label === query.get("gpu"));
    if (at >= 0) state.sim = at;
    if (COLUMNS.some((c) => c.key === query.get("sort"))) state.sort = query.get("sort");
    state.dir = query.get("dir") === "asc" ? "asc" : "desc";
    state.filter = query.get("filter") || "";
  };
  const writeHash = () => {
    const query = new URLSearchParams({ gpu: data.sims[state.sim].label, sort: state.sort, dir: state.dir });
    if (state.filter) query.set("filter", state.filter);
    try { history.replaceState(null, "", `#${query}`); } catch (error) { /* a sandboxed page has no history */ }
  };

  // -- the kernel table
  const COLUMNS = [
    { key: "kernel", head: "kernel", wide: true },
    { key: "count", head: "×", num: (r) => (r.count > 1 ? r.count : "") },
    { key: "module", head: "module", wide: true },
    { key: "phase", head: "phase" },
    { key: "class", head: "class" },
    { key: "flops", head: "FLOPs", num: (r) => (r.unmodeled ? "no formula" : r.flops ? si(r.flops, "") : "0") },
    { key: "bytes", head: "bytes", num: (r) => si(r.bytes, "B") },
    { key: "intensity", head: "FLOP/B", num: (r) => r.intensity.toFixed(1) },
    { key: "bound", head: "bound", num: (r) => seconds(r.bound) },
    { key: "time", head: "time", num: (r) => seconds(r.time) },
    { key: "share", head: "time %", num: (r) => (100 * r.share).toFixed(2) },
    { key: "wall", head: "limited by" },
  ];
  const element = (tag, text, cls) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (cls) node.className = cls;
    return node;
  };
  let showAll = false;
  const select = () => {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (r) => `${r.kernel} ${r.module} ${r.class} ${r.phase} ${r.wall} ${r.shapes}`.toLowerCase();
    const rows = tables[state.sim].filter((r) => { const t = text(r); return words.every((w) => t.includes(w)); });
    const sign = state.dir === "asc" ? 1 : -1;
    const key = state.sort;
    return rows.sort((a, b) => (a[key] < b[key] ? -sign : a[key] > b[key] ? sign : 0));
  };
  const renderTable = () => {
    const rows = select();
    const body = $("#kernels tbody");
    body.replaceChildren(...rows.slice(0, showAll ? rows.length : FEW).map((r) => {
      const line = element("tr");
      for (const c of COLUMNS) {
        const cell = element("td", c.num ? c.num(r) : r[c.key], c.num ? "n" : c.wide ? "t wide" : "t");
        if (c.wide) cell.title = c.key === "kernel" ? `${r.kernel}\n${r.shapes}` : r.module;
        if (c.key === "kernel") {
          const dot = element("span", undefined, "dot");
          dot.style.background = data.colors[r.class] || data.colors.other;
          cell.prepend(dot);
        }
        line.append(cell);
      }
      return line;
    }));
    const time = rows.reduce((sum, r) => sum + r.time, 0);
    const share = rows.reduce((sum, r) => sum + r.share, 0);
    $("#count").textContent = `${rows.length} of ${tables[state.sim].length} rows, ${seconds(time)}, ${(100 * share).toFixed(1)} % of the time`;
    $("#more").hidden = showAll || rows.length <= FEW;
    for (const head of all("#kernels th")) {
      if (head.dataset.key === state.sort) head.setAttribute("aria-sort", state.dir === "asc" ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
  };

  // -- the roofline
  const svgNode = (tag, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const tip = $("#tip");
  const hover = (node, text) => {
    node.onmousemove = (event) => {
      tip.hidden = false;
      tip.textContent = text;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
    };
    node.onmouseleave = () => { tip.hidden = true; };
  };
  const describe = (r) => [
    `${r.kernel}${r.count > 1 ? `  ×${r.count}` : ""}`, `${r.module}  (${r.phase}, ${r.class})`, r.shapes,
    r.unmodeled ? "no formula: bytes only" : `${si(r.flops, "FLOP")}, ${si(r.bytes, "B")}, ${r.intensity.toFixed(1)} FLOP/B`,
    `time ${seconds(r.time)} (${(100 * r.share).toFixed(1)} %), bound ${seconds(r.bound)}, ${si(r.rate, "FLOP/s")}`,
    `compute ${seconds(r.compute)}, memory ${seconds(r.memory)}, overhead ${seconds(r.overhead)}: ${r.wall}`,
  ].filter(Boolean).join("\n");

  // -- measured kernels: a mark for each executor, joined to where the model put the kernel
  const MARKS = {
    eager: (x, y, r) => `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    inductor: (x, y, r) => `M${x},${y - r}l${r},${2 * r}h${-2 * r}z`,
    generated: (x, y, r) => `M${x},${y - r}l${r},${r}l${-r},${r}l${-r},${-r}z`,
  };
  const measuredRow = ([executor, kernel, cls, intensity, modeledRate, rate, share, modeled, measured]) =>
    ({ executor, kernel, class: cls, intensity, modeledRate, rate, share, modeled, measured });
  const describeMeasured = (m) => [
    `${m.kernel}  (${m.executor})`, `measured ${seconds(m.measured)}, ${si(m.rate, "FLOP/s")}`,
    `modeled ${seconds(m.modeled)}: ${m.modeled < m.measured ? "-" : "+"}${Math.abs(100 * (m.modeled / m.measured - 1)).toFixed(1)} %`,
    `${(100 * m.share).toFixed(1)} % of what was measured`,
  ].join("\n");

  const roofline = (host, sim, rows) => {
    const [W, H, L, R, T, B] = [1120, 520, 96, 168, 16, 44];
    const points = rows.filter((r) => r.intensity > 0 && r.rate > 0);
    const bare = rows.filter((r) => !(r.intensity > 0 && r.rate > 0));
    const top = sim.roofs[0].rate;
    const ridge = top / sim.slopes[0].rate;
    const floor10 = (v) => 10 ** Math.floor(Math.log10(v));
    const ceil10 = (v) => 10 ** Math.ceil(Math.log10(v));
    const x0 = floor10(Math.max(1e-3, Math.min(0.1, ...points.map((r) => r.intensity))));
    const x1 = ceil10(Math.max(ridge * 4, ...points.map((r) => r.intensity * 1.2)));
    const y1 = top * 1.8;
    // Kernels of under a thousandth of the time do not stretch the axis; they stand on its edge.
    const rates = points.concat(sim.measured.map(measuredRow)).filter((r) => r.share > 1e-3).map((r) => r.rate);
    const y0 = floor10(Math.max(y1 / 1e9, Math.min(top / 1e3, ...rates)) / 1.5);
    const X = (v) => L + (W - L - R) * (Math.log10(Math.max(v, x0) / x0) / Math.log10(x1 / x0));
    const Y = (v) => H - B - (H - T - B) * (Math.log10(Math.max(v, y0) / y0) / Math.log10(y1 / y0));
    const svg = svgNode("svg", { viewBox: `0 0 ${W} ${H}`, width: "100%", role: "img", "aria-label": "roofline" });
    for (let v = x0; v <= x1 * 1.001; v *= 10) {
      svg.append(svgNode("line", { x1: X(v), x2: X(v), y1: T, y2: H - B, class: "grid" }));
      svg.append(svgNode("text", { x: X(v), y: H - B + 16, "text-anchor": "middle", class: "dim" }, v >= 1 ? v.toLocaleString("en") : String(+v.toPrecision(1))));
    }
    for (let v = y0; v <= y1; v *= 10) {
      svg.append(svgNode("line", { x1: L, x2: W - R, y1: Y(v), y2: Y(v), class: "grid" }));
      svg.append(svgNode("text", { x: L - 34, y: Y(v) + 4, "text-anchor": "end", class: "dim" }, si(v, "").replace(/\.00? /, " ").replace(/\.0 /, " ")));
    }
    svg.append(svgNode("text", { x: (L + W - R) / 2, y: H - 6, "text-anchor": "middle" }, "arithmetic intensity, FLOP per DRAM byte"));
    svg.append(svgNode("text", { x: 14, y: (T + H - B) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(T + H - B) / 2})` }, "attained FLOP/s"));

    let above = -Infinity; // roofs are named in the right margin, one below the other
    for (const roof of sim.roofs) {
      const from = Math.min(...sim.slopes.map((s) => roof.rate / s.rate));
      const dash = roof.used ? {} : { "stroke-dasharray": "5 4", opacity: 0.55 };
      const y = Y(roof.rate);
      const [name, rate] = roof.label.split("  ");
      above = Math.max(y - 2, above + 30);
      svg.append(svgNode("line", { x1: X(Math.max(x0, from)), x2: W - R, y1: y, y2: y, class: "roof", "stroke-width": 1.4, ...dash }));
      svg.append(svgNode("line", { x1: W - R, x2: W - R + 10, y1: y, y2: above + 2, class: "roof", "stroke-width": 0.6 }));
      svg.append(svgNode("text", { x: W - R + 14, y: above }, name));
      svg.append(svgNode("text", { x: W - R + 14, y: above + 13, class: "dim" }, rate));
    }
    for (const slope of sim.slopes) {
      const low = Math.max(x0, y0 / slope.rate);
      const high = top / slope.rate;
      const dash = slope.used ? {} : { "stroke-dasharray": "5 4", opacity: 0.55 };
      svg.append(svgNode("line", { x1: X(low), y1: Y(low * slope.rate), x2: X(high), y2: Y(top), class: "roof", "stroke-width": 1.4, ...dash }));
      const angle = -Math.atan2(Y(low * slope.rate) - Y(top), X(high) - X(low)) * 180 / Math.PI;
      const at = low * (high / low) ** 0.03;
      const [tx, ty] = [X(at), Y(at * slope.rate) - 6];
      svg.append(svgNode("text", { x: tx, y: ty, transform: `rotate(${angle} ${tx} ${ty})`, class: "halo" }, slope.label));
    }

    const radius = (r) => 2.5 + 22 * Math.sqrt(r.share);
    const dot = (r, cx, cy) => {
      const node = svgNode("circle", { cx, cy, r: radius(r).toFixed(2), fill: data.colors[r.class] || data.colors.other });
      hover(node, describe(r));
      node.onclick = () => { $("#filter").value = state.filter = `${r.kernel} ${r.module === "(top)" ? "" : r.module}`.trim(); update(); $("#filter").scrollIntoView({ block: "center" }); };
      return node;
    };
    const dots = points.map((r) => [r, dot(r, X(r.intensity), Y(r.rate))]);
    let edge = H - B;
    for (const r of bare) {
      const size = radius(r);
      if (edge - 2 * size < T + 12) break;
      edge -= size + 1;
      dots.push([r, dot(r, L - 18, edge)]);
      edge -= size;
    }
    if (bare.length) svg.append(svgNode("text", { x: L - 18, y: Math.max(T + 6, edge - 8), "text-anchor": "middle", class: "dim" }, "0 FLOP"));
    dots.sort((a, b) => b[0].share - a[0].share);
    for (const [, node] of dots) svg.append(node);
    const marks = [];
    for (const m of sim.measured.map(measuredRow)) {
      const [x, y] = [X(m.intensity), Y(m.rate)];
      svg.append(svgNode("line", { x1: x, x2: x, y1: Y(m.modeledRate), y2: y, class: "roof", "stroke-width": 1 }));
      const size = 3 + 3 * Math.sqrt(m.share);
      marks.push([x, y, size]);
      const mark = svgNode("path", { d: MARKS[m.executor](x, y, size), class: "measured", fill: data.colors[m.class] || data.colors.other });
      hover(mark, describeMeasured(m));
      svg.append(mark);
    }

    // Labels of the longest kernels, where they touch neither each other, nor a circle or mark, nor the frame.
    const circles = dots.map(([, node]) => ["cx", "cy", "r"].map((a) => +node.getAttribute(a)));
    const boxes = [];
    // Whether a rectangle comes within a pixel of a circle: its point nearest to the centre lies that close.
    const obstacles = circles.concat(marks);
    const covers = (b) => obstacles.some(([x, y, r]) =>
      Math.hypot(x - Math.min(Math.max(x, b[0]), b[2]), y - Math.min(Math.max(y, b[1]), b[3])) < r + 1);
    const segments = sim.roofs.map((f) => [X(x0), Y(f.rate), W - R, Y(f.rate)]).concat(sim.slopes.map((s) => {
      const low = Math.max(x0, y0 / s.rate);
      return [X(low), Y(low * s.rate), X(top / s.rate), Y(top)];
    }));
    const struck = (b) => segments.some(([ax, ay, bx, by]) => {
      for (let i = 0; i <= 300; i++) {
        const [px, py] = [ax + (bx - ax) * i / 300, ay + (by - ay) * i / 300];
        if (px > b[0] && px < b[2] && py > b[1] && py < b[3]) return true;
      }
      return false;
    });
    const seen = new Set();
    for (const [i, [r]] of dots.entries()) {
      const name = r.kernel.replace(/^aten\.(\w+)(\.\w+)?$/, "$1");
      const text = name.length > 26 ? `${name.slice(0, 25)}…` : name;
      if (seen.size > 7 || r.share < 0.012) break;
      if (!points.includes(r) || seen.has(`${text} ${r.class}`)) continue;
      const width = text.length * 6.4;
      const [cx, cy, rad] = circles[i];
      const spots = [];
      for (const gap of [3, 12, 26, 42]) {
        spots.push([cx + rad + gap, cy + 4], [cx - width / 2, cy + rad + gap + 9], [cx + rad * 0.7 + gap, cy + rad * 0.7 + gap + 8],
          [cx - width / 2, cy - rad - gap - 2], [cx - rad - gap - width, cy + 4], [cx - rad * 0.7 - gap - width, cy - rad * 0.7 - gap]);
      }
      const free = spots.find(([x, y]) => x > L && x + width < W - R && y > T + 8 && y < H - B - 2 &&
        !covers([x, y - 9, x + width, y + 3]) &&
        !boxes.some((b) => x < b[2] && x + width > b[0] && y - 10 < b[3] && y + 3 > b[1]) && !struck([x, y - 9, x + width, y + 2]));
      if (!free) continue;
      seen.add(`${text} ${r.class}`);
      boxes.push([free[0], free[1] - 10, free[0] + width, free[1] + 3]);
      const mid = free[0] + width / 2;
      if (Math.hypot(mid - cx, free[1] - cy) > rad + width / 2 + 14) {
        svg.append(svgNode("line", { x1: cx, y1: cy, x2: free[0] > cx ? free[0] : free[0] + width, y2: free[1] - 3, class: "roof", "stroke-width": 0.5 }));
      }
      svg.append(svgNode("text", { x: free[0], y: free[1], class: "halo", "pointer-events": "none" }, text));
    }
    const legend = element("p", undefined, "legend");
    for (const name of Object.keys(data.colors).filter((c) => rows.some((r) => r.class === c))) {
      const entry = element("span");
      const swatch = element("i");
      swatch.style.background = data.colors[name];
      entry.append(swatch, name);
      legend.append(entry);
    }
    for (const name of Object.keys(MARKS).filter((e) => sim.measured.some((m) => m[0] === e))) {
      const [entry, icon] = [element("span"), svgNode("svg", { width: 12, height: 12 })];
      icon.append(svgNode("path", { d: MARKS[name](6, 6, 4), class: "measured", fill: "none" }));
      entry.append(icon, ` measured, ${name}`);
      legend.append(entry);
    }
    host.replaceChildren(svg, legend);
  };

  // -- wiring
  const update = () => {
    for (const panel of all(".panel")) panel.hidden = +panel.dataset.sim !== state.sim;
    for (const tab of all("#tabs button")) tab.setAttribute("aria-selected", String(+tab.dataset.sim === state.sim));
    const host = $(`.roofline[data-sim="${state.sim}"]`);
    if (host && !host.firstChild) roofline(host, data.sims[state.sim], tables[state.sim]);
    renderTable();
    writeHash();
  };
  $("#kernels thead tr").replaceChildren(...COLUMNS.map((c) => {
    const head = element("th", c.head, c.num ? "n" : "t");
    head.dataset.key = c.key;
    head.onclick = () => {
      if (state.sort === c.key) state.dir = state.dir === "asc" ? "desc" : "asc";
      else { state.sort = c.key; state.dir = c.num ? "desc" : "asc"; }
      update();
    };
    return head;
  }));
  for (const tab of all("#tabs button")) tab.onclick = () => { state.sim = +tab.dataset.sim; update(); };
  $("#filter").oninput = (event) => { state.filter = event.target.value; update(); };
  $("#more").onclick = () => { showAll = true; renderTable(); };
  const follow = () => { readHash(); $("#filter").value = state.filter; update(); };
  addEventListener("hashchange", follow);
  follow();
})();
