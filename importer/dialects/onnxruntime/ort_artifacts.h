// OrtArtifacts: the folder that onnxruntime.training.artifacts.generate_artifacts writes, opened
// for training.
//
//   PREFIXtraining_model.onnx   forward, loss and backward; parameters and accumulators are inputs
//   PREFIXeval_model.onnx       forward and loss
//   PREFIXoptimizer_model.onnx  ort_optimizer.h; may be absent
//   PREFIXcheckpoint            parameters and optimizer state: ort_checkpoint.h
//
// `training` is the training model made an ordinary file. Its weights are those of the checkpoint,
// read from there in place. Its accumulators (InPlaceAccumulatorV2) are gone; the gradients that
// they took are outputs. The constant 1 from which backward starts is an input.
//
// All members are values; the files stay open. Threads: any. Errors: kInput naming file and tensor
// or node.
// https://onnxruntime.ai/docs/api/python/on_device_training/training_artifacts.html
#pragma once

#include <string>
#include <vector>

#include "importer/dialects/onnxruntime/ort_checkpoint.h"
#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

struct OrtPaths {
  std::string training, eval, optimizer, checkpoint;  // optimizer: empty when absent
};

// Returns whether `folder` holds artifacts, judged by its training model.
bool is_ort_folder(const std::string& folder);
Result<OrtPaths> ort_paths(const std::string& folder);

struct OrtGradient {
  std::string parameter;
  std::string value;  // of the training graph
};

struct OrtArtifacts {
  OrtPaths paths;
  OnnxFile training;
  OrtCheckpoint checkpoint;
  std::string seed;  // the gradient of the loss
  std::vector<OrtGradient> gradients;

  static Result<OrtArtifacts> open(const std::string& folder);
};

// A tensor of the checkpoint as a weight of the file's data file number `file`.
Initializer as_initializer(const OrtTensor& tensor, int file = 0);

Result<OrtCheckpoint> open_ort_checkpoint(const std::string& path);

}  // namespace ofsdp::importer
