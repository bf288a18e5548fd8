// OnnxFile: an .onnx file opened for training. The skeleton (see onnx_walk.h) is all that is read
// at once; weights are read where and when a rank wants them, so no rank reads more than its
// shards.
//
// The file and its data files stay open, so replacing them by name (as writing the trained file to
// the same path does) changes nothing here. One cut short in place is an error of `read`.
//
// Ownership: owns the descriptors. Threads: const members from any thread.
// Errors: kInput from `open` (one line: path, tensor, expected and found); kFault from `read`.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "importer/file/onnx_walk.h"

namespace ofsdp::importer {

// Values in place of those that a file has.
class InitialSource {
 public:
  virtual ~InitialSource() = default;
  virtual bool has(const Initializer& initializer) const = 0;
  virtual Status read(const Initializer& initializer, int64_t first_element,
                      std::span<float> dst) = 0;
};
std::string initial_key(const Initializer& initializer);  // which of a file it is

using NamedScales = std::map<std::string, std::vector<float>>;  // scales by their initializers

class OnnxFile {
 public:
  static Result<OnnxFile> open(const std::string& path);
  // A model without weights that is in no file: the update of a training_info. `path` is for
  // messages.
  static OnnxFile of_model(const std::string& path, std::string model);
  // A model whose parts somebody else has put together; `file` has its bytes but for the weights.
  static OnnxFile of_parts(OpenFile file, OnnxContents contents);

  const std::string& path() const { return file_.path; }
  const std::string& skeleton() const { return contents_.skeleton; }  // a serialized ModelProto
  const std::vector<Initializer>& initializers() const { return contents_.initializers; }

  // Elements first_element .. first_element + dst.size() - 1 in row-major order, as float32; those
  // of a quantized weight dequantized. They must be inside of the shape.
  Status read(const Initializer& initializer, int64_t first_element, std::span<float> dst) const;

  // Bytes of the raw data of an initializer. They must be inside. REQUIRES: has_raw, which the
  // encoding decides.
  bool has_raw(const Initializer& initializer) const;
  Status read_raw(const Initializer& initializer, int64_t first_byte,
                  std::span<std::byte> dst) const;

  // --- constants of quantization ---
  // An initializer of the main graph that is no quantized weight, or the value of a Constant node;
  // null: there is none.
  const Initializer* find_constant(const std::string& name) const;
  Result<std::vector<int64_t>> integers(const Initializer& constant) const;
  // Scales above 0; zero points of a TensorProto.DataType. Errors: kInput, expected and found.
  Result<std::vector<float>> scales(const std::string& name) const;
  Result<std::vector<int64_t>> zero_points(const std::string& name, int onnx_type,
                                           size_t count) const;
  // The product of a bias's factors, as far as `changed` says with other scales than the file's.
  Result<std::vector<float>> factor_product(const Quantization& q,
                                            const NamedScales& changed) const;

  // The scales of quantized weights, by index, that `changed` makes others; of an int32 bias the
  // product of its factors.
  Result<std::map<int, std::vector<float>>> rescaled(const NamedScales& changed) const;

  // From now on `read` asks it first; threads: then only one may read.
  void set_initial(std::shared_ptr<InitialSource> source) { initial_ = std::move(source); }
  bool one_thread_reads() const { return initial_ != nullptr; }
  bool has_initial(const Initializer& initializer) const {
    return initial_ != nullptr && initial_->has(initializer);
  }

  const OpenFile& file() const { return file_; }
  const OnnxContents& contents() const { return contents_; }

  // For a dialect whose training model has its weights in another file.
  OnnxContents take_contents() { return std::move(contents_); }
  void put_contents(OnnxContents contents) { contents_ = std::move(contents); }

 private:
  const OpenFile& file_of(const Initializer& initializer) const;
  Result<Quantization> settled(const Initializer& weight, Quantization q) const;
  Status resolve_quantizations();
  Status read_quantized(const OpenFile& file, const Initializer& weight, int64_t first,
                        std::span<float> dst) const;
  Status read_list(const Initializer& initializer, int64_t first_element,
                   std::span<float> dst) const;
  Status read_converted(const OpenFile& file, const Initializer& initializer, int64_t first_element,
                        std::span<float> dst) const;

  OpenFile file_;
  OnnxContents contents_;
  std::shared_ptr<InitialSource> initial_;
};

}  // namespace ofsdp::importer
