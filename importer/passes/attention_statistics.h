// keep_attention_statistics: attention that keeps its log-sum-exp for its gradient, for a device
// whose library has such kernels. In a training graph
//
//   Attention            becomes ofsdp.AttentionWithStatistics(Q, K, V, mask, lengths) -> Y,
//                        statistics, float32 [batch, heads, queries], a tensor as any other
//   ofsdp.AttentionGrad  reads Y and the statistics as its operands 6 and 7
//
// where both read the same queries, keys, values, mask and lengths. Works on finished graphs, also
// recomputed ones: of several forward nodes (a clone is one) the last before the gradient is taken,
// and an operand that is computed again is the operand. Attention without a gradient keeps nothing.
//
// Nothing big lives for this alone: Y must be there for another backward node that does not compute
// it again, as the gradient of the projection that follows it. Exporters put a Transpose between
// the two; when its output is kept, the gradient reads that, and has its perm as y_perm. Else the
// nodes stay as they are, as where `takes` refuses one of the two. Graph::fused counts, as
// "statistics".
//
// Threads: any. Errors: none. Dao et al., "FlashAttention", 2022.
#pragma once

#include "importer/passes/epilogues.h"

namespace ofsdp::importer {

Graph keep_attention_statistics(const Graph& graph, const TakesNode& takes);

}  // namespace ofsdp::importer
