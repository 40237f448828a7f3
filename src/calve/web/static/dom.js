// Builds elements, and changes a shown tree into a new one without losing focus, selection or scroll positions.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export function h(tag, attributes, ...children) {
  return make(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return make(document.createElementNS(SVG, tag), attributes, children);
}

function alike(before, after) {
  return before.nodeType === after.nodeType && before.nodeName === after.nodeName &&
    (before.nodeType !== Node.ELEMENT_NODE || before.getAttribute("data-key") === after.getAttribute("data-key"));
}

function adapt(before, after) {
  if (before.nodeType === Node.TEXT_NODE) {
    if (before.data !== after.data) before.data = after.data;
    return;
  }
  if (before.hasAttribute("data-kept")) return;
  for (const { name } of [...before.attributes]) {
    const own = name === "open" && before.nodeName === "DETAILS";
    if (!own && !after.hasAttribute(name)) before.removeAttribute(name);
  }
  for (const { name, value } of [...after.attributes]) {
    if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  }
  morph(before, [...after.childNodes]);
}

/** Make the children of `parent` equal to `wanted`, with as many of the present nodes as possible. */
export function morph(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.children) {
    if (child.hasAttribute("data-key")) keyed.set(child.getAttribute("data-key"), child);
  }
  let present = parent.firstChild;
  for (const after of wanted) {
    const key = after.nodeType === Node.ELEMENT_NODE ? after.getAttribute("data-key") : null;
    const found = key === null ? present : keyed.get(key);
    if (found && alike(found, after)) {
      if (found !== present) parent.insertBefore(found, present);
      else present = present.nextSibling;
      adapt(found, after);
    } else {
      parent.insertBefore(after, present);
    }
  }
  while (present) {
    const next = present.nextSibling;
    present.remove();
    present = next;
  }
}
