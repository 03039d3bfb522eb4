/** Keeps a chart as large as its element. */

/** Resizes a chart with its element, and then calls `fit`. Returns a function that does so at once: an element has its size before its observer is called. */
export function followSize(element, chart, fit) {
  let size = ""
  const resize = () => {
    const { clientWidth: width, clientHeight: height } = element
    if (!width || size === `${width} ${height}`) return
    size = `${width} ${height}`
    chart.resize(width, height)
    fit()
  }
  new ResizeObserver(resize).observe(element)
  return resize
}
