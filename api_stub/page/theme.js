/** Applies the remembered theme before the page is drawn. It is no module, because modules run later. */
try {
  document.documentElement.dataset.theme = JSON.parse(localStorage.getItem("kronos.theme")) ?? "system"
} catch {} // this browser stores nothing
