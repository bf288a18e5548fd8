// loss_plot: the loss of a run, and of its evaluations, as lines of plain characters for --plot.
// There are no escape codes.
//
//   loss by update, logarithmic; o evaluation
//     2.31 |*
//          |*
//          | **o
//    0.152 |   ***
//          |      ***o****
//     0.01 |              **o
//          +-----------------
//           1       9      17
//
// With braille characters a cell has 2 x 4 dots, otherwise one `*`. A column shows the mean of its
// updates. The axis of values is logarithmic if all are above 0 and the largest is 100 times the
// least.
#pragma once

#include <string>

namespace ofsdp::runtime {

class RunCurves;

// --plot and --report.
struct PictureOptions {
  bool plot = false;
  std::string report;  // empty: none

  bool any() const { return plot || !report.empty(); }
};

struct PlotShape {
  int width = 80;   // columns, with the labels; at least 20
  int height = 15;  // lines, with title and axis; at least 6
  bool braille = false;
};

// Returns the terminal's width if stdout is one, else 80; braille if the locale is UTF-8.
PlotShape stdout_plot();

// Returns lines that end with newlines; empty if no loss is finite.
std::string loss_plot(const RunCurves& curves, const PlotShape& shape);

}  // namespace ofsdp::runtime
