// ModelEditor: an ONNX file with another graph and other weights, which is trained and written as
// if it were a file of its own. Nothing is copied but the graph: weights are read where they lie in
// the file that was edited, and new ones have a ValueSource.
//
//   editor = ModelEditor::make(file)     the graph without weights among its inputs
//   editor.graph(), add_weight(), ...    changes
//   editor.finish()                      an OnnxFile; its `file()` is in memory
//
// External data stay in their files. A training_info is left out. Inputs that only name weights are
// left out where the file's IR version needs none.
//
// Ownership: the made file shares the one it was made from. Threads: one. Errors: kInput for a
// model that does not parse; kFault when memory for the graph is lacking.
#pragma once

#include <onnx/onnx_pb.h>

#include <memory>
#include <set>
#include <vector>

#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

class ModelEditor {
 public:
  static Result<ModelEditor> make(std::shared_ptr<const OnnxFile> file);

  onnx::ModelProto& model() { return model_; }
  onnx::GraphProto& graph() { return *model_.mutable_graph(); }
  const OnnxFile& file() const { return *file_; }  // before the changes
  const std::string& path() const { return file_->path(); }

  // Floating-point initializers, those of the file and new ones.
  const std::vector<Initializer>& weights() const { return weights_; }
  const Initializer* weight(const std::string& name) const;  // null: none

  void add_weight(const std::string& name, DType dtype, Shape shape,
                  std::shared_ptr<const ValueSource> values);
  // The same name with the values of another weight.
  void add_copy(const std::string& name, const Initializer& of);
  void replace_weight(const std::string& name, Shape shape,
                      std::shared_ptr<const ValueSource> values);

  // A name that nothing in the graph has: `wanted`, or that with a number.
  std::string free_name(const std::string& wanted);

  Result<OnnxFile> finish();

 private:
  explicit ModelEditor(std::shared_ptr<const OnnxFile> file) : file_(std::move(file)) {}
  void declare(onnx::GraphProto& graph, const Initializer& weight) const;
  std::string skeleton() const;
  onnx::ModelProto whole() const;

  std::shared_ptr<const OnnxFile> file_;
  onnx::ModelProto model_;
  std::vector<Initializer> weights_;
  std::set<std::string> names_;
};

}  // namespace ofsdp::importer
