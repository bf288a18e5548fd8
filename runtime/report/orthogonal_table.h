// The matrices that Muon orthogonalizes: which rank takes which, and what each rank has of them.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

struct DealtMatrix {
  std::string name;
  int unit = 0;
  const OrthogonalMatrix* matrix = nullptr;
  std::vector<int> ranks;  // one of each copy of the unit
};

struct OrthogonalLoad {  // of a rank
  int64_t matrices = 0;
  size_t bytes = 0;  // of them
  double flops = 0;  // of an update
};

std::vector<DealtMatrix> dealt_matrices(const RunPlan& plan);
std::vector<OrthogonalLoad> orthogonal_loads(const RunPlan& plan);  // per rank

// Two tables, with their headings; empty where Muon takes none.
std::string orthogonal_table(const RunPlan& plan);

}  // namespace ofsdp::runtime
