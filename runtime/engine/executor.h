// The loop over the operations of a bound program, and the engines that it drives: CpuEngine
// (runtime/engine/cpu_engine.h), a Communicator and CPU kernels; DeviceEngine
// (runtime/engine/device/device_engine.h), streams of a device.
//
// The loop decides nothing: what to do, in which order and where is in the operations. An engine
// decides what depends on values alone.
//
// Ownership: views. Threads: the one that made the engine. No allocation. Errors: what kernels and
// collectives say.
#pragma once

#include "runtime/program/binding.h"

namespace ofsdp::runtime {

// The exchange of JoinRows, in the messages of both engines.
inline constexpr const char* kJoinName = "all-gather of rows";

class Engine {
 public:
  virtual ~Engine() = default;

  // Before the first and after the last operation of a step of the schedule.
  virtual Status begin_step(const Operation&) { return {}; }
  virtual Status end_step(const Operation&) { return {}; }

  // One for each OpKind, in its order.
  virtual Status run_node(const Operation& op) = 0;
  virtual Status unshard(const Operation& op) = 0;
  virtual Status await(const Operation&) { return {}; }
  virtual Status clear(const Operation& op) = 0;
  virtual Status convert(const Operation& op) = 0;
  virtual Status add(const Operation& op) = 0;
  virtual Status post(const Operation&) { return {}; }
  virtual Status reduce(const Operation& op) = 0;
  virtual Status all_reduce(const Operation& op) = 0;
  virtual Status check_loss(const Operation& op) = 0;
  virtual Status buffer(const Operation& op) = 0;
  virtual Status clip(const Operation& op) = 0;
  virtual Status update(const Operation& op) = 0;
  virtual Status trust(const Operation& op) = 0;
  virtual Status apply(const Operation& op) = 0;
  virtual Status sums(const Operation& op) = 0;
  virtual Status factors(const Operation& op) = 0;
  virtual Status orthogonalize(const Operation& op) = 0;
  virtual Status watch(const Operation&) { return {}; }  // of the CPU alone (device_choice.h)
  virtual Status meet(const Operation&) { return {}; }
  virtual Status copy_up(const Operation&) { return {}; }
  virtual Status copy_down(const Operation&) { return {}; }
  virtual Status signal(const Operation&) { return {}; }
  virtual Status place_rows(const Operation& op) = 0;
  virtual Status join_rows(const Operation& op) = 0;
};

Status execute(Engine& engine, const Operation& operation);
Status execute(Engine& engine, const BoundProgram& program);

}  // namespace ofsdp::runtime
