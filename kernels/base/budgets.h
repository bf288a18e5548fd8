// Budgets: the most that a model file may ask for. A few hundred bytes can name nested loops, an
// exabyte tensor or functions that call each other ten times a level. If a model exceeds a budget,
// the importer refuses it in one line before it builds any of that. Exporters stay far below each
// budget.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ofsdp::base {

// Tensor axes. Loops over strided operands keep counters in arrays this long.
inline constexpr int kMaxAxes = 16;

// Tensor bytes: a process's address space. Workspaces are small multiples of operands, so their
// sizes cannot wrap.
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 47;

// Bytes that all nodes of a graph together read, write and work in. A sum over any part of the
// plan, times ranks and optimizer states, stays below 2^63.
inline constexpr int64_t kMaxGraphBytes = int64_t{1} << 56;

// Nodes that the importer expands from functions, loops, branches and sequences. Normalizing a node
// takes about a kilobyte and 10 microseconds; planning time is quadratic in the node count.
inline constexpr int64_t kMaxNodes = int64_t{1} << 18;

// Bytes of these nodes, and of external tensors that the importer reads into the model: protobuf's
// limit.
inline constexpr int64_t kMaxModelBytes = (int64_t{1} << 31) - 1;

// Iterations of one loop; tensors in one sequence.
inline constexpr int64_t kMaxIterations = 4096;

// Nested modules (by name) and nested function calls. Exporters nest less than 40 deep, so code may
// recurse.
inline constexpr int kMaxDepth = 256;

// Elements of a value computed while planning. A larger constant is not worth a place in the
// arena.
inline constexpr int64_t kMaxFolded = int64_t{1} << 24;

// Bytes of all such values in a graph; the step computes later ones.
inline constexpr int64_t kMaxFoldedBytes = int64_t{1} << 31;

// Table entries that one kernel makes while planning; plans do not count them.
inline constexpr int64_t kMaxTableEntries = int64_t{1} << 24;

// Attention queries: the plan lists their blocks, and plans each by itself if attention is causal.
inline constexpr int64_t kMaxQueries = int64_t{1} << 20;

}  // namespace ofsdp::base
