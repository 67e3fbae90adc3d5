"use strict";
// Pictures: what a mark says follows the pointer or the keyboard; a click on a mark finds its kernels in the table;
// modules zoom and are searched; each picture can be saved. The table of kernels fills in what it knows of a mark.
const page = { find() {}, says() { return ""; }, show() {} };
(() => {
  const all = (selector, root) => [...(root || document).querySelectorAll(selector)];
  const make = (tag, text, attributes) => {
    const node = document.createElement(tag);
    if (text) node.textContent = text;
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    return node;
  };

  document.querySelector("#theme").onclick = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };

  // -- what a mark says
  const tip = make("div", "", { id: "tip", role: "status" });
  tip.hidden = true;
  document.body.append(tip);
  for (const title of all("svg.chart title")) {
    title.parentNode.dataset.title = title.textContent;
    title.remove();
  }
  const tell = (mark, x, y) => {
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = [mark.dataset.title, page.says(mark.dataset.key || "")].filter(Boolean).join("\n");
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 8))}px`;
  };
  document.addEventListener("pointermove", (event) => {
    tell(event.target.closest ? event.target.closest("[data-title]") : null, event.clientX, event.clientY);
  });

  // -- a click, or the keyboard: arrows go from mark to mark, Enter is a click, Escape ends
  const chosen = (mark) => {
    const module = /^zoom:(\d+):(.*)$/.exec(mark.dataset.key);
    if (module) zoom(mark, `zoom:${module[1]}:`);
    page.find(module ? "" : mark.dataset.key, module ? module[2] : undefined);
  };
  document.addEventListener("click", (event) => {
    const mark = event.target.closest ? event.target.closest("svg.chart [data-key]") : null;
    if (mark) chosen(mark);
  });
  const leave = (svg) => { for (const mark of all(".at", svg)) mark.classList.remove("at"); tell(null); };
  for (const svg of all("svg.chart")) {
    const marks = all("[data-title]", svg);
    if (!marks.length) continue;
    svg.setAttribute("tabindex", "0");
    let at = -1;
    svg.onblur = () => leave(svg);
    svg.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) at = (at + step + marks.length) % marks.length;
      else if (event.key === "Enter" && marks[at] && marks[at].dataset.key) chosen(marks[at]);
      else if (event.key === "Escape") { leave(svg); at = -1; return; }
      else return;
      event.preventDefault();
      leave(svg);
      marks[at].classList.add("at");
      const box = marks[at].getBoundingClientRect();
      tell(marks[at], box.left + Math.min(box.width, 200) / 2, box.bottom - 8);
    };
  }

  // -- flame graphs and treemaps: the module that is clicked fills the place of the whole tree
  const SIDES = ["x", "y", "width", "height"];
  const modules = all('svg.chart rect[data-key^="zoom:"]');
  const zoom = (mark, tree) => {
    const rects = all(`rect[data-key^="${tree}"]`, mark.ownerSVGElement);
    for (const rect of rects) {
      if (!rect.home) rect.home = SIDES.map((side) => +rect.getAttribute(side));
      if (rect.nextSibling && rect.nextSibling.nodeName === "text") rect.nextSibling.remove();
    }
    const [left, top, width, height] = rects[0].home;
    const [x, y, w, h] = mark.home;
    const flat = rects.every((rect) => rect.home[3] === rects[0].home[3]); // a flame graph zooms across alone
    for (const rect of rects) {
      const [rx, ry, rw, rh] = rect.home;
      const from = Math.max(left, left + (rx - x) * width / w);
      const to = Math.min(left + width, left + (rx + rw - x) * width / w);
      const upper = flat ? ry : Math.max(top, top + (ry - y) * height / h);
      const lower = flat ? ry + rh : Math.min(top + height, top + (ry + rh - y) * height / h);
      [from, upper, Math.max(0, to - from), Math.max(0, lower - upper)].forEach((v, i) => rect.setAttribute(SIDES[i], v));
      const name = nameOf(rect);
      const most = Math.floor((to - from - 8) / 6.2);
      if (most < 3 || lower - upper < 12) continue;
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      for (const [key, value] of Object.entries({ x: from + 4, y: upper + 13, "font-size": 10, fill: rect.dataset.ink, "pointer-events": "none" })) text.setAttribute(key, value);
      text.textContent = name.length > most ? `${name.slice(0, most - 1)}…` : name;
      rect.after(text);
    }
  };
  const nameOf = (rect) => rect.dataset.title.slice(0, rect.dataset.title.lastIndexOf(": "));
  for (const rect of modules) {
    const label = rect.nextSibling;
    const fill = /^var\(--([\w-]+),#/.exec(rect.getAttribute("fill"));
    rect.dataset.ink = label && label.nodeName === "text" ? label.getAttribute("fill") : fill ? `var(--on-${fill[1]})` : "#000";
  }

  // -- modules by a regular expression: hits stand out, and their share of each tree is that of the outermost ones
  const seek = (svg, pattern) => {
    let count = 0;
    const shares = [], outer = [];
    for (const rect of all('rect[data-key^="zoom:"]', svg)) {
      const [, tree, path] = /^zoom:(\d+):(.*)$/s.exec(rect.dataset.key);
      const hit = pattern && (pattern.test(nameOf(rect)) || pattern.test(path));
      rect.classList.toggle("hit", Boolean(hit));
      rect.classList.toggle("miss", Boolean(pattern) && !hit);
      shares[tree] = shares[tree] || 0;
      if (!hit) continue;
      count += 1;
      if (outer.some(([of, other]) => of === tree && (!other || path === other || path.startsWith(`${other}.`)))) continue;
      outer.push([tree, path]);
      shares[tree] += parseFloat((/<?([\d.]+) %$/.exec(rect.dataset.title) || [0, 0])[1]);
    }
    return [count, shares];
  };
  for (const choice of all(".choice")) {
    const pick = (number) => {
      for (const part of all("div[data-pick]", choice)) part.hidden = part.dataset.pick !== number;
      for (const button of all("button[data-pick]", choice)) button.setAttribute("aria-selected", String(button.dataset.pick === number));
    };
    for (const button of all("button[data-pick]", choice)) button.onclick = () => { pick(button.dataset.pick); look(); };
    const field = make("input", "", { type: "search", placeholder: "find modules: a regular expression", "aria-label": "find modules" });
    const said = make("span", "", { role: "status" }), line = make("p", "", { class: "controls" });
    const look = () => {
      let pattern = null;
      try { pattern = field.value ? new RegExp(field.value, "i") : null; } catch (error) { said.textContent = "not a regular expression yet"; return; }
      said.textContent = "";
      line.hidden = !choice.querySelector('div[data-pick]:not([hidden]) rect[data-key^="zoom:"]');
      for (const svg of all("svg.chart", choice)) {
        const [count, shares] = seek(svg, pattern);
        const told = shares.map((share) => `${share.toFixed(1)} %`).join(" and ");
        if (pattern && told && svg.getClientRects().length) said.textContent = `${count} found, ${told} of the whole`;
      }
    };
    field.oninput = look;
    pick("0");
    if (!choice.querySelector('rect[data-key^="zoom:"]')) continue;
    line.append(field, " ", said);
    choice.querySelector(".picks").after(line);
    look();
  }

  // -- the kernels of a row of the table, in every picture that has them; none: all stand out alike
  page.show = (key, module) => {
    for (const svg of all("svg.chart")) {
      if (svg.closest(".panel[hidden]")) continue; // of another schedule, whose rows have other numbers
      const own = all("[data-key]", svg);
      const hits = own.filter((mark) => mark.dataset.key === key || (module && mark.dataset.key.replace(/^zoom:\d+:/, "") === module));
      for (const mark of own) mark.classList.toggle("miss", Boolean(hits.length) && !hits.includes(mark));
    }
  };

  // -- a picture as a file, in the colours that it has here
  const asFile = (svg) => {
    const copy = svg.cloneNode(true);
    const [, , width, height] = svg.getAttribute("viewBox").split(" ");
    for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height })) copy.setAttribute(name, value);
    const made = [copy, ...all("*", copy)];
    [svg, ...all("*", svg)].forEach((node, i) => {
      for (const name of ["fill", "stroke"]) if (/^var/.test(node.getAttribute(name) || "")) made[i].setAttribute(name, getComputedStyle(node)[name]);
      for (const name of ["class", "tabindex", ...Object.keys(node.dataset).map((key) => `data-${key}`)]) made[i].removeAttribute(name);
      if (!node.dataset.title) return;
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = node.dataset.title;
      made[i].prepend(title);
    });
    const sheet = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: getComputedStyle(svg.closest(".card")).backgroundColor })) sheet.setAttribute(name, value);
    copy.prepend(sheet);
    return [new XMLSerializer().serializeToString(copy), +width, +height];
  };
  const save = (svg, suffix, blob) => {
    const label = (svg.getAttribute("aria-label") || "picture").replace(/ \([^()]*\)/g, "");
    const words = label.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
    const link = make("a", "", { download: `${words.slice(0, 60)}.${suffix}`, href: URL.createObjectURL(blob) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const saveSvg = (svg) => save(svg, "svg", new Blob([asFile(svg)[0]], { type: "image/svg+xml" }));
  const savePng = (svg) => {
    const [text, width, height] = asFile(svg);
    const image = new Image(), sheet = make("canvas", "", { width: 2 * width, height: 2 * height });
    image.onload = () => {
      sheet.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
      sheet.toBlob((blob) => save(svg, "png", blob));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  };
  for (const svg of all("svg.chart")) {
    const line = make("p", "", { class: `save ${svg.classList.contains("narrow") ? "narrow" : "wide"}` });
    for (const [name, act] of [["SVG", saveSvg], ["PNG", savePng]]) {
      const button = make("button", name, { type: "button", title: `save the picture as ${name}` });
      button.onclick = () => act(svg);
      line.append(button);
    }
    svg.after(line);
  }
})();
