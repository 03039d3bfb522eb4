/** Tells what is known from what is forecast: a line at "now", and another ground behind the forecast. */

const GAP_PX = 6

export class Ahead {
  #chart = null
  #update = () => {}
  #shown = { now: null }

  /** @param label What stands at the top of the forecast; "" for nothing. */
  constructor(label = "") { this.label = label }

  attached({ chart, requestUpdate }) { [this.#chart, this.#update] = [chart, requestUpdate] }

  /** Shows from where on: `now`, the place of the `last` known bar, null if nothing is forecast; and in which colours. */
  show(shown) {
    this.#shown = shown
    this.#update()
  }

  paneViews() {
    return [{ zOrder: () => "bottom", renderer: () => ({ draw: (target) => this.#draw(target) }) }]
  }

  #draw(target) {
    const { now, last, ground, line, text } = this.#shown
    if (now === null) return
    const spacing = this.#chart.timeScale().options().barSpacing
    const x = this.#chart.timeScale().logicalToCoordinate(now) + spacing / 2
    target.useMediaCoordinateSpace(({ context, mediaSize: { width, height } }) => {
      if (x >= width) return
      context.fillStyle = ground
      context.fillRect(Math.max(0, x), 0, width - x, height)
      if (x < 0) return
      context.strokeStyle = line
      context.setLineDash([4, 4])
      context.beginPath()
      context.moveTo(Math.round(x) + 0.5, 0)
      context.lineTo(Math.round(x) + 0.5, height)
      context.stroke()
      if (!this.label) return
      context.fillStyle = text
      context.font = "12px system-ui, sans-serif"
      const y = height - GAP_PX
      if (context.measureText(this.label).width < width - x - GAP_PX) context.fillText(this.label, x + GAP_PX, y)
      context.textAlign = "right"
      context.fillText(last, x - GAP_PX, y)
    })
  }
}
