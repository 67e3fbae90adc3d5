"use strict";
(() => {
  // parallel coordinates: an axis for each option and quantity, a line for each point; a drag along an axis keeps the
  // points within, a click on it takes all again, and lines of the best points are darkest
  const root = document.querySelector("#parallel");
  const { axes, points } = JSON.parse(root.querySelector("script").textContent);
  const canvas = root.querySelector("canvas"), said = root.querySelector("p");
  const TOP = 48, FOOT = 22, SIDE = 46, LEAST = 84; // pixels; LEAST of an axis: a narrow page scrolls
  canvas.style.width = `max(100%, ${LEAST * axes.length}px)`;
  const brushes = axes.map(() => null);
  let drag = null;
  const words = axes.map((axis, i) => axis.words || null);
  const ends = axes.map((axis, i) => {
    const values = points.map((point) => point[i]).filter((value) => value !== null);
    return words[i] ? [0, Math.max(1, words[i].length - 1)] : [Math.min(...values), Math.max(...values)];
  });
  const logs = ends.map(([low, high], i) => !words[i] && low > 0 && high > 6 * low);
  const share = (i, value) => {
    const [low, high] = ends[i];
    if (high === low) return 0.5;
    const along = logs[i] ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return along;
  };
  const place = (i, value) => TOP + (1 - share(i, value)) * (canvas.clientHeight - TOP - FOOT);
  const across = (i) => SIDE + i * (canvas.clientWidth - 2 * SIDE) / Math.max(1, axes.length - 1);
  const UNITS = [[1e12, " T"], [1e9, " G"], [1e6, " M"]];
  const text = (value) => {
    const [scale, unit] = UNITS.find(([least]) => Math.abs(value) >= least) || [1, ""];
    const scaled = value / scale;
    return (Math.abs(scaled) >= 1000 ? Math.round(scaled).toLocaleString("en") : +scaled.toPrecision(3)) + unit;
  };
  const kept = (point) => brushes.every((brush, i) => {
    if (!brush) return true;
    if (point[i] === null) return false;
    const y = place(i, point[i]);
    return y >= brush[0] && y <= brush[1];
  });
  const draw = () => {
    const scale = devicePixelRatio || 1, css = getComputedStyle(document.documentElement);
    const color = (name) => css.getPropertyValue(name).trim();
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const lines = points.map((point, rank) => [point, rank, kept(point)]);
    const count = lines.filter((line) => line[2]).length;
    const first = lines.find((line) => line[2]);
    for (const [point, rank, on] of lines.slice().reverse()) {
      if (!on && brushes.some(Boolean) && rank % 3) continue;
      const best = first && rank === first[1];
      pen.strokeStyle = best ? color("--ink") : on ? color("--accent") : color("--line");
      pen.globalAlpha = best ? 1 : on ? Math.max(0.06, Math.min(0.8, 60 / count)) : 0.35;
      pen.lineWidth = best ? 2.2 : 1;
      pen.beginPath();
      let begun = false;
      point.forEach((value, i) => {
        if (value === null) return;
        pen[begun ? "lineTo" : "moveTo"](across(i), place(i, value));
        begun = true;
      });
      pen.stroke();
    }
    pen.globalAlpha = 1;
    pen.font = "11px system-ui,DejaVu Sans,sans-serif";
    axes.forEach((axis, i) => {
      const x = across(i), bottom = canvas.clientHeight - FOOT;
      pen.textAlign = i === 0 ? "left" : i === axes.length - 1 ? "right" : "center";
      const at = i === 0 ? 2 : i === axes.length - 1 ? canvas.clientWidth - 2 : x;
      pen.strokeStyle = color("--pale") || color("--dim");
      pen.lineWidth = 1;
      pen.strokeRect(x, TOP, 0, bottom - TOP);
      pen.fillStyle = color("--ink");
      pen.fillText(axis.name, at, i % 2 ? 12 : 27, (canvas.clientWidth - 2 * SIDE) / axes.length * 1.9);
      pen.fillStyle = color("--dim");
      pen.textAlign = "center";
      const ticks = words[i] ? words[i].map((word, n) => [n, word]) : ends[i].map((value) => [value, text(value)]);
      pen.strokeStyle = color("--card");
      pen.lineWidth = 3;
      for (const [value, name] of ticks) {
        const y = place(i, value) + (value === ends[i][0] ? 13 : -3);
        pen.strokeText(name, x, y);
        pen.fillText(name, x, y);
      }
      if (brushes[i]) {
        pen.globalAlpha = 0.25;
        pen.fillStyle = color("--accent");
        pen.fillRect(x - 8, brushes[i][0], 16, brushes[i][1] - brushes[i][0]);
        pen.globalAlpha = 1;
      }
    });
    const of = first ? axes.map((axis, i) => `${axis.name} ${words[i] ? words[i][first[0][i]] : first[0][i] === null ? "-" : text(first[0][i])}`) : [];
    said.textContent = `${count.toLocaleString("en")} of ${points.length.toLocaleString("en")} points` + (first ? `; the best of them: ${of.join(", ")}` : "");
  };
  const nearest = (event) => {
    const x = event.clientX - canvas.getBoundingClientRect().left;
    return axes.reduce((best, _, i) => Math.abs(across(i) - x) < Math.abs(across(best) - x) ? i : best, 0);
  };
  const height = (event) => event.clientY - canvas.getBoundingClientRect().top;
  canvas.onpointerdown = (event) => {
    drag = { axis: nearest(event), from: height(event) };
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointermove = (event) => {
    if (!drag) return;
    const ends = [drag.from, height(event)].sort((a, b) => a - b);
    brushes[drag.axis] = ends[1] - ends[0] < 4 ? null : ends;
    draw();
  };
  canvas.onpointerup = (event) => {
    if (drag && Math.abs(height(event) - drag.from) < 4) brushes[drag.axis] = null;
    drag = null;
    draw();
  };
  addEventListener("resize", draw);
  matchMedia("print").addEventListener("change", draw);
  document.querySelector("#theme").addEventListener("click", () => setTimeout(draw));
  draw();
})();
