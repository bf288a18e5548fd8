// The initializers that a training_info may name: those of the model's graph, and those of its own
// algorithm, which come first.
//
// Ownership: refers to the model. Threads: any, once made. Errors: none.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "importer/dialects/training_info/training_info.h"

namespace ofsdp::importer {

struct DeclaredInitializer {
  int64_t type = 0;
  std::vector<int64_t> dims;
  bool floating = false;
  const onnx::TensorProto* tensor = nullptr;  // with its data, where the skeleton has them

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t axis : dims) n *= axis;
    return n;
  }
};

class DeclaredInitializers {
 public:
  using Key = std::pair<int, std::string>;  // training_info (-1: the model's graph), initializer

  DeclaredInitializers(const OnnxFile& file, const onnx::ModelProto& model);

  bool contains(const Key& key) const { return declared_.contains(key); }
  const DeclaredInitializer& at(const Key& key) const { return declared_.at(key); }
  // The initializer that a name of algorithm k means.
  Key key_of(int k, const std::string& name) const {
    return declared_.contains({k, name}) ? Key{k, name} : Key{-1, name};
  }
  // --initialize may give it another value than the file has.
  bool is_initialized(const Key& key) const;

 private:
  void declare(int k, const onnx::TensorProto& tensor);

  const onnx::ModelProto& model_;
  std::map<Key, DeclaredInitializer> declared_;
};

}  // namespace ofsdp::importer
