# SPDX-License-Identifier: Apache-2.0
# fla_build_id: an object with the id of this build, linked into every library. The id is a hash of all
# sources and options, computed at every build and written only when it changes.
set(id_source ${CMAKE_BINARY_DIR}/build_id.cpp)
add_custom_target(fla_build_id_source
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/ascendc/codegen/build_id.py ${FLA_CONFIG} ${id_source}
  BYPRODUCTS ${id_source} COMMENT "" VERBATIM)
add_library(fla_build_id OBJECT ${id_source})
add_dependencies(fla_build_id fla_build_id_source)
