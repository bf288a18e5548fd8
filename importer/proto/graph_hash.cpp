#include "importer/proto/graph_hash.h"

#include <set>

#include "importer/file/model_field.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/hash.h"

namespace ofsdp::importer {
namespace {

class SkeletonHash {
 public:
  explicit SkeletonHash(const OnnxFile& file) : file_(file) {
    for (const Initializer& weight : file.initializers()) weights_.insert(weight.name);
  }

  std::string hash() {
    walk(std::as_bytes(std::span(file_.skeleton())), model_field::kGraph);
    for (const Initializer& weight : file_.initializers()) {
      add(weight.name);
      add(format_text("{} {}", number_of_dtype(weight.dtype), weight.shape.text()));
    }
    return format_text("{:016x}", hash_.value());
  }

 private:
  void add(std::string_view text) { hash_.add(text).add(uint64_t{0xff}); }  // 0xff ends a text

  // Hashes every field but those of `inside`, into which it goes. The importer has read these bytes
  // before, so they are whole; a broken rest is left out.
  void walk(std::span<const std::byte> message, uint32_t inside) {
    for (WireReader reader(message); !reader.done();) {
      const Result<WireField> field = reader.next();
      if (!field.ok()) return;
      // How it is trained is no part of what it is.
      if (field->number == model_field::kTrainingInfo && inside == model_field::kGraph) continue;
      if (field->number == inside && inside == model_field::kGraph) {
        walk(field->bytes, graph_field::kInitializer);
      } else if (field->number == inside && is_weight(field->bytes)) {
        continue;  // its name, type and shape follow
      } else {
        add(format_text("{}", field->number));
        add(as_text(field->bytes));
      }
    }
  }

  bool is_weight(std::span<const std::byte> tensor) const {
    return weights_.contains(string_field(tensor, tensor_field::kName));
  }

  const OnnxFile& file_;
  std::set<std::string> weights_;
  Fnv1a hash_;
};

}  // namespace

std::string graph_hash(const OnnxFile& file) { return SkeletonHash(file).hash(); }

}  // namespace ofsdp::importer
