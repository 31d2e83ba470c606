// Replays the steps of speculative decoding, one at a time: in the report of a run and as a notebook widget.
//
// data: {texts: [[text, label]], trees: [svg], first, prompts: {prompt: text of the prompt, if known},
// trails: [{prompt, sampling, method, group, separator, total,
// steps: [[tree, texts of the nodes, path, text of the bonus, kept, summary]]}]}. `tree`, the texts of nodes
// and bonus are indices into `trees` and `texts`. Trees are drawn by treespec.drawing and contain no text:
// text written by models and users is inserted as text only, never as HTML.

const KEYS = ["prompt", "sampling", "method"];

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function button(text, label, act) {
  const element = make("button", { type: "button", "aria-label": label, title: label }, text);
  element.addEventListener("click", act);
  return element;
}

export function mount(host, data, { at = 0, onStep = () => {} } = {}) {
  let trail = data.trails[data.first || 0];
  const piece = (text) => data.texts[text][0];

  const choices = {};
  const chosen = make("div", { class: "stepper-bar" });
  for (const key of KEYS) {
    const values = [...new Set(data.trails.map((t) => t[key]))];
    if (values.length < 2) continue;
    const select = make("select", {}, ...values.map((value) => new Option(value, value)));
    select.addEventListener("change", () => choose(key, select.value));
    choices[key] = select;
    chosen.append(make("label", {}, `${key} `, select));
  }

  const counter = make("span", { class: "stepper-count", "aria-live": "polite" });
  const slider = make("input", { type: "range", min: "0", "aria-label": "step" });
  slider.addEventListener("input", () => go(Number(slider.value)));
  const buttons = {
    first: button("«", "first step", () => go(0)),
    back: button("‹ back", "step back", () => go(at - 1)),
    next: button("next ›", "next step", () => go(at + 1)),
    last: button("»", "last step", () => go(trail.steps.length - 1)),
  };
  const bar = make("div", { class: "stepper-bar" }, ...Object.values(buttons), slider, counter);

  const said = make("p", { class: "stepper-said", "aria-live": "polite" });
  const stage = make("div", { class: "stepper-tree", tabindex: "0", "aria-label": "drafted tree" });
  const key = (name, text) => make("span", {}, make("i", { class: name }), text);
  const legend = make(
    "p", { class: "stepper-legend" },
    key("accepted", "accepted path"), key("rejected", "rejected"), key("bonus", "bonus of the target"),
    make("span", { class: "stepper-keys" }, "arrow keys move"),
  );
  const text = make("pre", { class: "stepper-text", tabindex: "0", "aria-label": "text so far" });

  function choose(key, value) {
    const wanted = { ...trail, [key]: value };
    const matches = (t, keys) => keys.every((k) => t[k] === wanted[k]);
    // not every combination was kept: the choice just made has priority, then the method
    const orders = [KEYS, [key, "method"], [key, "sampling"], [key]];
    for (const keys of orders) {
      const match = data.trails.find((t) => matches(t, keys));
      if (match) { trail = match; break; }
    }
    stage.style.minHeight = "";
    go(0);
  }

  function go(step) {
    at = Math.max(0, Math.min(step, trail.steps.length - 1));
    draw();
    onStep(at);
  }

  function emitted([, nodes, path, bonus, kept]) {
    return [...path.slice(1).map((node) => nodes[node]), bonus].slice(0, kept).map(piece);
  }

  function draw() {
    const step = trail.steps[at];
    const [tree, nodes, path, bonus, kept, summary] = step;
    for (const key of KEYS) if (choices[key]) choices[key].value = trail[key];
    slider.max = String(trail.steps.length - 1);
    slider.value = String(at);
    buttons.first.disabled = buttons.back.disabled = at === 0;
    buttons.next.disabled = buttons.last.disabled = at === trail.steps.length - 1;
    const more = trail.total > trail.steps.length ? ` (the text took ${trail.total})` : "";
    counter.textContent = `step ${at + 1} of ${trail.steps.length}${more}`;
    said.textContent = summary;

    stage.innerHTML = data.trees[tree];
    const labels = stage.querySelectorAll("text"), boxes = stage.querySelectorAll("rect");
    [...nodes, bonus].forEach((index, i) => {
      const [fullText, label] = data.texts[index];
      labels[i].textContent = label;
      const hint = document.createElementNS(labels[i].namespaceURI, "title");
      const role = i === nodes.length ? "bonus" : i === 0 ? "root" : path.includes(i) ? "accepted" : "rejected";
      hint.textContent = `${role}: ${JSON.stringify(fullText)}`;
      boxes[i].append(hint);
      if (role === "rejected") { labels[i].classList.add("faint"); boxes[i].classList.add("faint"); }
    });
    // keep the largest height so far, so that the page does not jump from step to step
    stage.style.minHeight = `${Math.max(parseFloat(stage.style.minHeight) || 0, stage.offsetHeight)}px`;

    // the root of the first step is the last token of the prompt
    const prompt = (data.prompts || {})[trail.prompt] || `… ${piece(trail.steps[0][1][0])}`;
    const before = trail.steps.slice(0, at).flatMap(emitted);
    const visibleBreaks = (s) => s.replaceAll("\n", "⏎\n");
    text.replaceChildren(make("span", { class: "prompt" }, prompt));
    before.forEach((added) => text.append(trail.separator, added));
    emitted(step).forEach((added, i) => {
      text.append(trail.separator);
      const kind = i < path.length - 1 ? "accepted" : "bonus";
      text.append(make("mark", { class: kind }, visibleBreaks(added)));
    });
    if (kept < path.length) text.append(make("span", { class: "faint" }, " (end)"));
    text.scrollTop = text.scrollHeight;
  }

  const moves = {
    ArrowRight: () => go(at + 1), ArrowLeft: () => go(at - 1),
    ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1),
    Home: () => go(0), End: () => go(trail.steps.length - 1),
  };
  host.classList.add("stepper");
  host.onkeydown = (event) => {
    const inControl = ["SELECT", "INPUT"].includes(event.target.tagName); // these use arrow keys themselves
    if (inControl || event.altKey || event.ctrlKey || event.metaKey || !moves[event.key]) return;
    event.preventDefault();
    event.stopPropagation(); // notebooks bind arrow keys, too
    moves[event.key]();
  };
  host.replaceChildren(chosen, bar, said, stage, legend, text);
  if (!chosen.children.length) chosen.remove();
  go(at);
  return { go, get at() { return at; } };
}

// The entry point of anywidget.
export default {
  render({ model, el }) {
    const host = document.createElement("div");
    el.append(host);
    const pictures = document.getElementById(model.get("pictures")); // shown where the widget does not run
    if (pictures) pictures.hidden = true;
    const view = mount(host, model.get("data"), {
      at: model.get("index"),
      onStep(at) {
        if (model.get("index") === at) return;
        model.set("index", at);
        model.save_changes();
      },
    });
    const follow = () => { if (view.at !== model.get("index")) view.go(model.get("index")); };
    model.on("change:index", follow);
    return () => model.off("change:index", follow);
  },
};
