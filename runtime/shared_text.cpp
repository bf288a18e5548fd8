#include "runtime/shared_text.h"

#include <cstring>
#include <vector>

namespace ofsdp {

Result<std::string> text_of_rank0(Communicator& communicator, std::string text) {
  if (communicator.size() == 1) return text;
  const CollectiveSite site{"output ticket", -1, 0};
  std::vector<double> lengths(static_cast<size_t>(communicator.size()));
  const auto mine = static_cast<double>(text.size());
  OFSDP_RETURN_IF_ERROR(communicator.exchange({&mine, 1}, lengths, site));
  auto fill = [](void* context, std::span<std::byte> bytes) {
    std::memcpy(bytes.data(), static_cast<std::string*>(context)->data(), bytes.size());
    return Status{};
  };
  MemoryLedger ledger;
  OFSDP_ASSIGN_OR_RETURN(const auto shared,
                         communicator.share_from_rank0(ledger, static_cast<size_t>(lengths[0]),
                                                       "output ticket", fill, &text));
  return std::string(reinterpret_cast<const char*>(shared.data()), shared.size());
}

}  // namespace ofsdp
