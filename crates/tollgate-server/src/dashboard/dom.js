// Making and changing elements. What comes from the server goes in as text only: there is no way here
// to make markup of a string.

export const byId = (id) => document.getElementById(id);

/// An element with attributes and children; a child that is no element is text.
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function drawing(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/// Sets a text, and touches nothing if it is there already: most figures stay as they are.
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/// Makes the children of `parent` those of `items`, in their order. A child stays the same element as
/// long as its item has the same name, so that what is focused or under the pointer stays so. Of items of one
/// name each has its own.
export function keep(parent, items, nameOf, make, update) {
  const known = (parent.kept ??= new Map());
  const focused = document.activeElement;
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const shared = nameOf(item);
    let name = shared;
    for (let number = 2; wanted.has(name); number += 1) name = `${shared}\n${number}`;
    wanted.add(name);
    let child = known.get(name);
    if (!child) known.set(name, (child = make(item)));
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const [name, child] of known) {
    if (wanted.has(name)) continue;
    child.remove();
    known.delete(name);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}
