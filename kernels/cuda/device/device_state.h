// What ofsdp_device of the table is in this library: for the files that make, close or describe one.
// Operators see the name alone (handles.h), so that they also compile for a device of the tests.
//
// Ownership: as the table says. Threads: one.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "kernels/core/device_table.h"

struct ofsdp_device {
  int ordinal = 0;
  int multiprocessors = 0;
  int capability = 0;                   // 90 for sm_90
  size_t bytes = 0;                     // of its memory
  bool tf32 = false, may_vary = false;  // operators made from now on (`allow`)
  uint64_t identity = 0;                // of its UUID
  std::string name;
  std::string error;
  std::set<void*> of_nccl;      // memory that is NCCL's to free
  std::shared_ptr<void> cudnn;  // its handle, made when first asked for
};
