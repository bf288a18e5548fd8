#include "runtime/cli/launch/endpoint.h"

#include "runtime/cli/options/option_value.h"

namespace ofsdp::cli {

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? format_text("{}:{}", host, port)
                                             : format_text("[{}]:{}", host, port);
}

Result<Endpoint> parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  std::string rest;  // ":PORT", or nothing
  if (text.starts_with('[') && text.find(']') != std::string::npos) {
    endpoint.host = text.substr(1, text.find(']') - 1);
    rest = text.substr(text.find(']') + 1);
  } else {
    const size_t colon = text.find(':');
    const bool ipv6 = colon != text.rfind(':');
    endpoint.host = ipv6 ? text : text.substr(0, colon);
    if (!ipv6 && colon != std::string::npos) rest = text.substr(colon);
  }
  std::optional<int64_t> port = kRendezvousPort;
  if (!rest.empty()) port = rest[0] == ':' ? parse_integer(rest.substr(1)) : std::nullopt;
  if (endpoint.host.empty() || !port || *port < 1 || *port > 65535) {
    return input_error(
        "--rdzv-endpoint: expected HOST:PORT with a port from 1 to 65535, found '{}'", text);
  }
  endpoint.port = static_cast<int>(*port);
  return endpoint;
}

}  // namespace ofsdp::cli
