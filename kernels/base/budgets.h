// Budgets: the most that a model file may ask for. A file of a few hundred bytes can name a loop of
// loops, a tensor of an exabyte or functions that call each other ten times a level; what passes a
// budget is refused in one line before any of it is made. Each is far above what exporters write.
//
// Constants. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ofsdp::base {

// Axes of a tensor. Loops over strided operands keep their counters in arrays of this length.
inline constexpr int kMostAxes = 16;

// Bytes of a tensor: what a process can address. Workspaces are small multiples of operands, so
// their sizes cannot wrap.
inline constexpr int64_t kMostTensorBytes = int64_t{1} << 47;

// Bytes that the nodes of a graph read, write and work in, all added up. Sums over any part of a
// plan, times ranks and optimizer states, stay below 2^63.
inline constexpr int64_t kMostGraphBytes = int64_t{1} << 56;

// Nodes that the importer makes of functions, loops, branches and sequences. A node takes about a
// kilobyte and 10 microseconds while the graph is normalized, and planning takes time quadratic in
// their number.
inline constexpr int64_t kMostNodes = int64_t{1} << 18;

// Their bytes, and those of external tensors that the importer reads into the model: the most that
// protobuf parses.
inline constexpr int64_t kMostModelBytes = (int64_t{1} << 31) - 1;

// Iterations of one loop, and tensors in one sequence.
inline constexpr int64_t kMostIterations = 4096;

// Modules inside of modules by their names, and functions that call functions. Exporters write less
// than 40; whatever walks such a tree may recurse.
inline constexpr int kMostDepth = 256;

// Elements of a value that is computed while planning. More is not worth keeping as a constant (a
// constant of a step lives in the arena too).
inline constexpr int64_t kMostFolded = int64_t{1} << 24;

// Bytes of all of them in a graph; what comes after is computed in the step.
inline constexpr int64_t kMostFoldedBytes = int64_t{1} << 31;

// Entries of the tables that one kernel makes while planning: no plan counts them.
inline constexpr int64_t kMostTableEntries = int64_t{1} << 24;

// Queries of an attention, whose blocks are listed, and planned one by one when causal.
inline constexpr int64_t kMostQueries = int64_t{1} << 20;

}  // namespace ofsdp::base
