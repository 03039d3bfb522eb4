/** Two series that the chart library lacks: a band between two values, and many lines at once. */
import { customSeriesDefaultOptions } from "../vendor/lightweight-charts/lightweight-charts.js"

class View {
  #data = null
  #options = null

  defaultOptions() { return { ...customSeriesDefaultOptions, color: "#888" } }

  renderer() {
    return { draw: (target, toY) => target.useBitmapCoordinateSpace((scope) => this.#draw(scope, toY)) }
  }

  update(data, options) {
    this.#data = data
    this.#options = options
  }

  isWhitespace(item) { return item.values === undefined }

  priceValueBuilder({ values }) {
    const known = values.filter(Number.isFinite)
    return [Math.min(...known), Math.max(...known), known[0]]
  }

  #draw(scope, toY) {
    const range = this.#data?.visibleRange
    if (!range) return
    const points = this.#data.bars.slice(Math.floor(range.from), Math.ceil(range.to)).map((bar) => ({
      x: bar.x * scope.horizontalPixelRatio,
      ys: bar.originalData.values.map((value) => toY(value) * scope.verticalPixelRatio),
    }))
    if (points.length) this.paint(scope, points, this.#options)
  }
}

/** Items: `{time, values: [low, high]}`; option `color`. */
export class BandView extends View {
  paint({ context }, points, { color }) {
    context.beginPath()
    points.forEach(({ x, ys }) => context.lineTo(x, ys[0]))
    points.toReversed().forEach(({ x, ys }) => context.lineTo(x, ys[1]))
    context.closePath()
    context.fillStyle = color
    context.fill()
  }
}

/** Items: `{time, values}` with one value per line, NaN where a line has none; option `color`. */
export class LinesView extends View {
  paint({ context, horizontalPixelRatio }, points, { color }) {
    context.strokeStyle = color
    context.lineWidth = horizontalPixelRatio
    for (let line = 0; line < points[0].ys.length; line += 1) {
      context.beginPath()
      points.forEach(({ x, ys }) => context.lineTo(x, ys[line]))
      context.stroke()
    }
  }
}
