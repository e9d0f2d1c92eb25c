// Draws the charts of this page with plotly.js, in the colours of the page's style, and again where those change.
(() => {
  "use strict";
  const charts = JSON.parse(document.getElementById("data").textContent).charts;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");   // there a finger that moves over a chart scrolls the page
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const colours = 8;
  let chosen = 0;

  const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const trace = (each, kind) => {
    const colour = styled(each.colour === null ? "--quiet" : `--colour-${each.colour % colours}`);
    const drawn = {...each.plotly, x: each.x[Math.min(chosen, each.x.length - 1)]};
    const dash = kind === "lines" && each.colour !== null ? dashes[each.colour % dashes.length] : "solid";
    drawn.line = {color: colour, width: kind === "areas" ? 0.5 : 2, dash, ...drawn.line};
    drawn.marker = {color: colour, size: 6, ...drawn.marker};
    if (drawn.stackgroup) {
      drawn.mode = "lines";
      drawn.fillcolor = colour;
    }
    if (drawn.type === "bar") {
      delete drawn.line;
      drawn.marker = {color: colour};
    }
    if (drawn.error_y) drawn.error_y = {...drawn.error_y, color: styled("--text")};
    return drawn;
  };

  const layout = (chart) => {
    const text = styled("--text"), rule = styled("--rule"), background = styled("--background");
    const axis = {gridcolor: rule, linecolor: rule, zerolinecolor: rule, automargin: true};
    const across = {...axis, ...chart.axes[Math.min(chosen, chart.axes.length - 1)]};
    return {
      ...chart.layout,
      xaxis: {...across, showgrid: false},
      yaxis: {...axis, ...chart.layout.yaxis},
      font: {family: "system-ui, sans-serif", size: 13, color: text},
      paper_bgcolor: background, plot_bgcolor: background,
      margin: {l: 8, r: 12, t: 12, b: 8},
      legend: {orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", traceorder: "normal"},
      hoverlabel: {bgcolor: styled("--raised"), bordercolor: rule, font: {color: text}},
      dragmode: touch.matches ? false : "zoom",
    };
  };

  const draw = () => charts.forEach((chart, number) => Plotly.react(
    `chart-${number}`, chart.traces.map((each) => trace(each, chart.kind)), layout(chart),
    {displayModeBar: false, responsive: true}));

  const axis = document.getElementById("axis");
  if (axis) {
    axis.hidden = false;
    axis.addEventListener("change", (event) => {
      chosen = Number(event.target.value);
      draw();
    });
  }
  dark.addEventListener("change", draw);
  draw();
})();
