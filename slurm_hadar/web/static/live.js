// Applies what the server says has changed; the page is whole without it.
"use strict";

(() => {
  const body = document.body;
  const source = body.dataset.events;
  const note = document.getElementById("connection");

  // The HTML comes from our own templates, which escape every value.
  const made = (html) => {
    const holder = document.createElement("template");
    holder.innerHTML = html.trim();
    return holder.content.firstElementChild;
  };

  const put = (old, fresh) => {
    const links = [...old.querySelectorAll("a")];
    const focused = links.indexOf(document.activeElement);
    const scrolled = old.querySelector(".scroll")?.scrollLeft ?? 0;
    old.replaceWith(fresh);
    if (scrolled) fresh.querySelector(".scroll").scrollLeft = scrolled;
    if (focused >= 0) fresh.querySelectorAll("a")[focused]?.focus();
  };

  const update = (change) => {
    for (const [id, html] of Object.entries(change.set)) {
      const old = document.getElementById(id);
      if (old) put(old, made(html));
    }
    const fresh = {};
    for (const items of Object.values(change.lists)) {
      for (const [id, html] of Object.entries(items)) {
        const old = document.getElementById(id);
        fresh[id] = made(html);
        if (old) put(old, fresh[id]);
      }
    }
    for (const [name, order] of Object.entries(change.order)) {
      const list = document.getElementById(name);
      const wanted = new Set(order);
      for (const item of [...list.children]) if (!wanted.has(item.id)) item.remove();
      let place = list.firstElementChild;
      for (const id of order) {
        const item = fresh[id] ?? document.getElementById(id);
        if (item === place) place = place.nextElementSibling;
        else list.insertBefore(item, place);
      }
    }
    body.dataset.version = change.version;
    ages();
  };

  const ages = () => {
    const now = Date.now() / 1000;
    for (const one of document.querySelectorAll("[data-since]")) {
      const seconds = Math.max(0, Math.round(now - Number(one.dataset.since)));
      one.textContent =
        seconds < 60 ? `${seconds} s ago`
        : seconds < 3600 ? `${Math.floor(seconds / 60)} min ago`
        : `${Math.floor(seconds / 3600)} h ago`;
    }
  };

  const listen = () => {
    const events = new EventSource(`${source}&version=${body.dataset.version}`);
    events.onopen = () => { note.textContent = ""; };
    events.onmessage = (event) => {
      note.textContent = "";
      update(JSON.parse(event.data));
    };
    events.addEventListener("gone", (event) => { note.textContent = event.data; });
    events.onerror = () => {
      note.textContent = "The page's server does not answer; trying again.";
      if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
    };
    addEventListener("pagehide", () => events.close(), { once: true });
  };

  addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
  // Of a day that is wider than the screen the end is what counts.
  for (const one of document.querySelectorAll("#day .scroll")) one.scrollLeft = one.scrollWidth;
  ages();
  setInterval(ages, 5000);
  listen();
})();
