// Endpoint: where launchers meet, an address of one of the hosts and a port.
//
// Errors: kInput for a text that is no endpoint.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace ofsdp::cli {

inline constexpr int kRendezvousPort = 29400;  // torchrun's

struct Endpoint {
  std::string host;
  int port = kRendezvousPort;
  std::string text() const;
};

// HOST, HOST:PORT, [IPV6]:PORT.
Result<Endpoint> parse_endpoint(const std::string& text);

}  // namespace ofsdp::cli
