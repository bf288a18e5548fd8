/* ofsdp_plugin.h as C99, with nothing included before it. */
#include "ofsdp_plugin.h"

int32_t ofsdp_header_c99(const ofsdp_node* node);
int32_t ofsdp_header_c99(const ofsdp_node* node) {
  if (ofsdp_numel(node->inputs[0]) < 0) return ofsdp_fail(node, "negative");
  if (ofsdp_float(node, "a", 0) < (float)ofsdp_int(node, "b", 0)) return OFSDP_ERROR;
  return ofsdp_like_input(node, 0, 0);
}
