// The rule for initializers that are floating-point numbers and yet no weights: a run trains them
// only if --train names them.
//
//   names     *inv_freq, *.attn.bias, *.masked_bias, *cos_cache, *sin_cache
//   code      PyTorch's older exporter has named it as a tensor of a module's code, such as
//             /encoder/Constant_3_output_0, and other weights of the file have names of parameters
//   tables    that only rotations of rotary embeddings read, as an operator or in plain nodes, and
//             frequencies that positions multiply to angles of Cos and Sin
//   slopes    one a head, that only positions multiply before they are added to an attention's
//             scores; a table that positions index is a weight
//   groups    scale and shift of an instance normalization that stands for one of groups
//   scales    of integers that the file stores, in forms that are no quantized weight as a whole
//   settings  [off, on] of OneHot, the window of an STFT
//   numbers   of rank 0; one element that an operator reads as a bound, a fill or a choice
//             (OpDef::reads_number), that scales both factors of a product, or has a name that
//             PyTorch's exporter gives to values without one: val_12
#pragma once

#include <set>
#include <string>

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// Returns the reason why the parameter is no weight, such as "rank 0"; "": it is a weight. `added`:
// weights that the file has not.
std::string why_not_by_rule(const Graph& graph, const GraphUses& uses, const Parameter& p,
                            const std::set<std::string>& added);

}  // namespace ofsdp::importer
