// The teacher: a second model whose outputs the trained one, the student, follows (--teacher). It
// is frozen and evaluates; its outputs become terms of the loss (Hinton et al., "Distilling the
// Knowledge in a Neural Network", 2015).
//
// It joins the student's graphs, so that units, gathers, memory and engines treat its parameters as
// any frozen ones:
//
//   with_teacher      the symbolic graph gets its parameters, after the student's, and the inputs
//                     that the student lacks. Every graph of a run has the same parameters.
//   join_teacher      a specialized training graph gets its nodes, specialized for evaluation,
//                     before the student's: its activations are free when the student begins.
//   add_distillation  a training graph gets the terms.
//
// The evaluation graph has neither nodes nor terms of it, and the written file nothing. Its names
// get a prefix that no name of the student has. Parameter::initializer is one of its own file.
//
// Ownership: values; owns its file. Threads: any. Errors: kInput naming the teacher's file.
#pragma once

#include <map>
#include <span>
#include <string>

#include "importer/file/onnx_file.h"
#include "importer/passes/loss.h"

namespace ofsdp::importer {

struct Distillation {
  double weight = 0.5;  // of the divergence from the teacher; the loss has the rest
  double temperature = 2;
};

struct Teacher {
  OnnxFile file;
  Graph symbolic;  // what its outputs need that the student has too; frozen
  Distillation how;
  std::string prefix;
  std::string identity;  // tells teachers apart: a hash of the graph and some values of each weight
};

// `imported`: of `file`. `student`: symbolic.
Result<Teacher> make_teacher(OnnxFile file, const Graph& imported, const Graph& student,
                             const Distillation& how);

Result<Graph> with_teacher(const Graph& student, const Teacher& teacher);

// `student` was made by with_teacher; both are specialized. `taught`: the teacher's outputs in the
// result, by the names in its file.
Result<Graph> join_teacher(const Graph& student, const Graph& teacher, const Teacher& of,
                           std::map<std::string, ValueId>& taught);

// After attach_losses of `specs`.
Status add_distillation(Graph& graph, std::span<const LossSpec> specs, const Teacher& teacher,
                        const std::map<std::string, ValueId>& taught);

}  // namespace ofsdp::importer
