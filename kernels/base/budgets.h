// Budgets: limits of the resources that a model file may ask for. A file of a few hundred bytes can
// name a loop of loops, a tensor of an exabyte or functions that call each other ten times a level;
// a model over a budget is refused in one line before any of it is made. Exporters stay far below
// each budget.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ofsdp::base {

// Axes of a tensor. Loops over strided operands keep their counters in arrays of this length.
inline constexpr int kMaxAxes = 16;

// Bytes of a tensor: the address space of a process. Workspaces are small multiples of operands, so
// their sizes cannot wrap.
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 47;

// Bytes that the nodes of a graph read, write and work in, all added up. Sums over any part of a
// plan, times ranks and optimizer states, stay below 2^63.
inline constexpr int64_t kMaxGraphBytes = int64_t{1} << 56;

// Nodes that the importer makes of functions, loops, branches and sequences. A node takes about a
// kilobyte and 10 microseconds while the graph is normalized, and planning takes time quadratic in
// their number.
inline constexpr int64_t kMaxNodes = int64_t{1} << 18;

// Bytes of these nodes, and of external tensors that the importer reads into the model: protobuf's
// limit.
inline constexpr int64_t kMaxModelBytes = (int64_t{1} << 31) - 1;

// Iterations of one loop, and tensors in one sequence.
inline constexpr int64_t kMaxIterations = 4096;

// Modules inside modules by their names, and functions that call functions. Exporters write less
// than 40, so code may walk such a tree by recursion.
inline constexpr int kMaxDepth = 256;

// Elements of a value that is computed while planning. More is not worth keeping as a constant (a
// constant of a step lives in the arena too).
inline constexpr int64_t kMaxFolded = int64_t{1} << 24;

// Bytes of all such values in a graph; later ones are computed in the step.
inline constexpr int64_t kMaxFoldedBytes = int64_t{1} << 31;

// Entries of the tables that one kernel makes while planning: no plan counts them.
inline constexpr int64_t kMaxTableEntries = int64_t{1} << 24;

// Queries of an attention: its blocks are listed, and planned one by one if causal.
inline constexpr int64_t kMaxQueries = int64_t{1} << 20;

}  // namespace ofsdp::base
