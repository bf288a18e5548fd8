// The names of classes. Labels may be text; a run numbers them 0, 1, .. and must number them as the
// model does, whatever part of the classes its data have. The names come from the first of these:
//
//   a checkpoint that is evaluated   its manifest has them
//   the model's own label operators  scikit-learn's classes (Graph::class_names)
//   NAME.classes.txt                 next to --resume FILE.onnx, else next to the model NAME.onnx;
//                                    written with a trained file
//   classes.txt                      next to the model; written, too, for other programs. A folder
//                                    has only one, so it counts if it has every name of the data
//   the data                         sorted by bytes
//
// A new head (--replace-head, --add-head) has no classes yet: the data's names count.
#pragma once

#include <string>
#include <vector>

#include "importer/graph/graph.h"
#include "kernels/base/status.h"
#include "runtime/data/data_spec.h"
#include "runtime/options.h"

namespace ofsdp::runtime {

// Returns the names for labels of the model at `path`; empty if nothing but the data has any.
// Returns kInput for a file with a name twice or an empty line.
Result<ClassNames> class_names_of(const std::string& path, const Graph& graph);

// The same for a run with these options.
Result<ClassNames> class_names_of_run(const Options& options, const Graph& graph);

// Writes the names next to a trained file. Nothing for no names.
Status write_class_names(const std::vector<std::string>& names, const std::string& model);

// Returns the paths that write_class_names writes.
std::vector<std::string> class_files_of(const std::string& model);

}  // namespace ofsdp::runtime
