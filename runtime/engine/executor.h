// execute: runs the operations of a bound program on an engine: CpuEngine (a Communicator and CPU
// kernels) or DeviceEngine (streams of a device).
//
// The operations say what to do, in which order and on which bytes; an engine decides by values
// alone (an empty micro-batch, a NaN). Call it on the thread that made the engine. It allocates
// nothing and returns errors of kernels and collectives.
#pragma once

#include "runtime/program/binding.h"

namespace ofsdp::runtime {

// Name of the exchange of JoinRows in messages.
inline constexpr const char* kJoinName = "all-gather of rows";

class Engine {
 public:
  virtual ~Engine() = default;

  // Called before the first and after the last operation of a step.
  virtual Status begin_step(const Operation&) { return {}; }
  virtual Status end_step(const Operation&) { return {}; }

  // One method for each kind of operation.
#define OPERATION(kind, engine, cost, traffic, description) \
  virtual Status engine(const Operation& op) = 0;
#include "runtime/program/steps.inc"

 protected:
  // For an operation that no program of this engine has.
  static Status absent(const Operation& op);
};

Status execute(Engine& engine, const Operation& operation);
Status execute(Engine& engine, const BoundProgram& program);

}  // namespace ofsdp::runtime
