// Notes of the calls that the CUDA runtime of these tests received.
#pragma once

namespace fake_cuda {

struct Asked {
  unsigned long long instantiated_with = 0;  // flags of the last cudaGraphInstantiate
  int graphs = 0;                            // captured and not yet destroyed
  int uploads = 0;
  bool refuses_to_instantiate = false;
  int early_queries = 0;  // of an event, before it is reached
  bool event_fails = false;
  int waits = 0;  // that block
};
Asked& asked();

}  // namespace fake_cuda
