// recompute: activation checkpointing. A training graph in which backward does not read what
// forward left of a block but computes it again from the block's inputs, which are kept.
//
// Forward is cut into segments where the unit changes whose parameters are read. A segment of the
// root is left alone. Of another, the nodes that backward needs are cloned and stand, as backward
// nodes, before the first that reads one of them; values that other segments, the loss or running
// statistics read are kept as they are. `kCheap` clones only nodes that cost little (everything but
// products, convolutions, attention and recurrences): these run again from products that are kept.
//
// A clone has its node's name, attributes and operands, and so its seed and its kernel: the bits
// are those without. Pure. Errors: none.
// Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", 2022 (the cheap ones).
#pragma once

#include <vector>

#include "fsdp/plan/plan.h"

namespace ofsdp::fsdp {

enum class SegmentRecompute : uint8_t { kNone, kCheap, kAll };

// A stretch of forward nodes, `last` inclusive, that reads the parameters of one unit.
struct Segment {
  int unit = -1;  // -1: none of a unit that is not the root
  int first = 0;
  int last = 0;
};

// The number of nodes before the first backward one.
int forward_end(const Graph& graph);

std::vector<Segment> segments(const Graph& training, const Plan& plan);

// Levels of recomputation, each with less memory than the one before. 0: none; 1: the cheap nodes
// of all segments; 1 + k: besides these all nodes of the first k segments that are not the root's.
std::vector<SegmentRecompute> recompute_choice(const std::vector<Segment>& segments, int level);
int most_recomputation(const std::vector<Segment>& segments);

// One choice a segment, in the order of `segments`.
Graph recompute(const Graph& training, const std::vector<Segment>& segments,
                const std::vector<SegmentRecompute>& choice);

}  // namespace ofsdp::fsdp
