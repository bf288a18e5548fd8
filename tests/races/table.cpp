#include "tests/races/table.h"

#include <cstdio>

namespace ofsdp::races {

std::vector<DType> Table::floats() const {
  if (!all_) return {DType::kBFloat16, DType::kFloat32};
  return {DType::kBFloat16, DType::kFloat32, DType::kFloat16};
}

void Table::row(const std::string& name, const Launching& launch) {
  if (name.find(only_) == std::string::npos) return;
  ++rows_;
  for (const bool backwards : {false, true}) {
    for (const std::string& line : watched_->run(backwards, launch)) {
      std::printf("%s: %s\n", name.c_str(), line.c_str());
      ++faults_;
    }
  }
}

}  // namespace ofsdp::races
