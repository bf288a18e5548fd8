// recompute: activation checkpointing. Backward does not read a block's activations; it computes
// them again from the block's inputs, which are saved.
//
// Forward is cut into segments: one ends before a node that reads parameters of another unit.
// Segments of the root do not change. In other segments the nodes that backward needs are cloned;
// the clones are backward nodes before the first node that reads one of them. Values that other
// segments, the loss or running statistics read are saved as before. `kCheap` clones only nodes
// that cost little (all but products, convolutions, attention and recurrences), which run again
// from saved products.
//
// A clone has the name, attributes and operands of the node, and so the same seed and kernel: the
// bits do not change.
// Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", 2022 (the cheap ones).
#pragma once

#include <vector>

#include "fsdp/plan/plan.h"

namespace ofsdp::fsdp {

enum class SegmentRecompute : uint8_t { kNone, kCheap, kAll };

// A stretch of forward nodes, `last` inclusive, that reads the parameters of one unit.
struct Segment {
  int unit = -1;  // -1: only the root's parameters, or none
  int first = 0;
  int last = 0;
};

// Returns the number of nodes before the first backward one.
int forward_end(const Graph& graph);

std::vector<Segment> segments(const Graph& training, const Plan& plan);

// Returns the choice for a level of recomputation; each level needs less memory than the one
// before. 0: none; 1: the cheap nodes of all segments; 1 + k: also all nodes of the first k
// segments that do not belong to the root.
std::vector<SegmentRecompute> recompute_choice(const std::vector<Segment>& segments, int level);
// Returns the highest level.
int max_recomputation(const std::vector<Segment>& segments);

// Returns the graph with the clones. `choice` has an entry for each segment.
Graph recompute(const Graph& training, const std::vector<Segment>& segments,
                const std::vector<SegmentRecompute>& choice);

}  // namespace ofsdp::fsdp
