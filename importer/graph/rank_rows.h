// Rows of all ranks within a micro-batch: what synchronized batch normalization
// (passes/passes.h) and the contrastive loss (passes/loss.h) need. A node ofsdp.JoinRows
// (kernels/core/joined_rows.h) takes this rank's rows and has those of all ranks as its output. Its
// kernel writes this rank's part alone: the schedule posts the rows where they are ready and waits
// for the others' where the first node reads them (PostRows, JoinRows in
// runtime/program/schedule.h).
//
// With one rank there is nothing to join. Values. Threads: any. Errors: none.
#pragma once

#include "importer/graph/graph.h"

namespace ofsdp::importer {

// The ranks whose rows a micro-batch joins, as this rank sees them.
struct RankRows {
  int ranks = 1;
  int rank = 0;
  int64_t samples = 1;  // the most of a micro-batch of a rank

  bool several() const { return ranks > 1; }
  // Attributes of an ofsdp.JoinRows whose ranks have at most `most` rows each.
  Attributes join(int64_t most) const {
    return {{"ranks", int64_t{ranks}}, {"rank", int64_t{rank}}, {"most", most}};
  }
};

// Whether the schedule carries out the node with all ranks.
inline bool joins_rows(const OpDef& op) { return op.domain == kOwnDomain && op.name == "JoinRows"; }

// Whether the node depends on joined rows and state alone: a rank without samples runs it too.
inline bool runs_without_rows(const OpDef& op) {
  return op.domain == kOwnDomain && op.name == "JoinedStatistics";
}

}  // namespace ofsdp::importer
