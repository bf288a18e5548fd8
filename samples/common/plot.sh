#!/usr/bin/env bash
# Draws a run's losses as an SVG: a metrics file (JSON Lines) in, a picture out. The thin line is the loss in each
# step, the thick one the running mean, the dots are evaluations. Needs only awk.
#
#   samples/common/plot.sh METRICS.jsonl OUT.svg [TITLE]
set -euo pipefail
metrics=$1 out=$2 title=${3:-loss}
trap 'rm -f "$out.part"' EXIT
LC_ALL=C awk -v title="$title" -v source="$metrics" '
  # The number after "key": in the line; "" for null or none.
  function field(key,  at, rest) {
    at = index($0, "\"" key "\":")
    if (at == 0) return ""
    rest = substr($0, at + length(key) + 3)
    return rest ~ /^-?[0-9]/ ? rest + 0 : ""
  }
  function grow(value) {
    if (value < low || !seen) low = value
    if (value > high || !seen) high = value
    seen = 1
  }
  function px(step) { return sprintf("%.1f", left + width * step / last) }
  function py(loss) { return sprintf("%.1f", top + height * (high - loss) / (high - low)) }
  # A round distance between about five grid lines.
  function pace(range,  unit) {
    unit = 10 ^ int(log(range / 5) / log(10) - (range < 5 ? 1 : 0))
    while (range / unit > 6) unit *= (range / unit > 12) ? 5 : 2
    return unit
  }
  function words(x, y, anchor, text) {
    printf "<text x=\"%s\" y=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text
  }
  function line(points, colour, thick) {
    printf "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" points=\"%s\"/>\n", colour, thick, points
  }
  /"kind":"step"/ && field("loss") != "" {
    n++; at[n] = field("step"); loss[n] = field("loss"); grow(loss[n])
    if (at[n] > last) last = at[n]
  }
  /"kind":"eval"/ && field("loss") != "" {
    m++; eval_at[m] = field("step"); eval_loss[m] = field("loss"); grow(eval_loss[m])
    if (eval_at[m] > last) last = eval_at[m]
  }
  END {
    if (last == 0) { print source ": no loss in it" > "/dev/stderr"; exit 1 }
    if (high == low) { high += 1; low -= 1 }
    left = 60; top = 40; width = 700; height = 360
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 450\" font-family=\"sans-serif\" font-size=\"12\">\n"
    print "<rect width=\"800\" height=\"450\" fill=\"white\"/>"
    words(left, 24, "start", title)
    unit = pace(high - low)
    for (y = unit * int(low / unit + 1); y <= high; y += unit) {
      line(left "," py(y) " " left + width "," py(y), "#dddddd", 1)
      words(left - 8, py(y) + 4, "end", y)
    }
    unit = pace(last)
    for (x = 0; x <= last; x += unit) words(px(x), top + height + 18, "middle", x)
    words(left + width / 2, top + height + 36, "middle", "step")
    line(left "," top " " left "," top + height " " left + width "," top + height, "black", 1)
    half = int(n / 80)  # of the running mean
    for (i = 1; i <= n; i++) total[i] = total[i - 1] + loss[i]
    for (i = 1; i <= n; i++) {
      from = i > half ? i - half : 1
      to = i + half < n ? i + half : n
      thin = thin px(at[i]) "," py(loss[i]) " "
      thick = thick px(at[i]) "," py((total[to] - total[from - 1]) / (to - from + 1)) " "
    }
    line(thin, "#b8cce4", 0.8)
    line(thick, "#1f5fa8", 2)
    for (i = 1; i <= m; i++) {
      printf "<circle cx=\"%s\" cy=\"%s\" r=\"4\" fill=\"#c0392b\"/>\n", px(eval_at[i]), py(eval_loss[i])
    }
    words(left + width, 24, "end", "training" (m ? sprintf("; dots: evaluation, %.4f at the end", eval_loss[m]) : ""))
    print "</svg>"
  }' "$metrics" > "$out.part"
mv "$out.part" "$out"
