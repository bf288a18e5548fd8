// Chart: a figure of HTML with curves as inline SVG, which a page shows without network or scripts.
//
// A line shows the mean of each bucket; an area around it shows least and largest values. A wide
// chart has a smoothed line, and a choice between a linear and a logarithmic axis. Marks show where
// a run was resumed, and updates that were skipped or whose loss was not finite. The classes are
// those of run_page.html.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/log/run_curves.h"

namespace ofsdp::runtime {

// Returns the text for HTML, also in attributes; control characters are escaped as elsewhere.
std::string html(std::string_view text);

struct ChartLine {
  const char* css;  // a or b
  std::string name;
  const Curve* curve;
  bool dots = false;  // evaluations, which are few
};

struct Chart {
  std::string title;
  std::vector<ChartLine> lines;
  bool wide = false;
  bool from_zero = false;
  bool cuts_peaks = false;  // the axis ends near the 98th percentile
  double divisor = 1;       // of the values, for a unit
  std::optional<double> limit = {};
  std::string limit_name = {};
};

// REQUIRES: a line has values. Marks are `run`'s. A page must have at most one wide chart.
std::string figure(const Chart& chart, const RunCurves& run);

}  // namespace ofsdp::runtime
