# SPDX-License-Identifier: Apache-2.0
# The CANN backend, all of its CMake. Our own configure includes this file and gets one target, which runs
# opp_package/cann_build.py: there is the order of the steps, what is kept of an earlier build, and the words
# of a failure. That program lays the same file out as the CMakeLists.txt of an operator project, which the
# toolkit's build functions configure, build and install: those of its CMake package (ASC) where there is one,
# else those of its project template, copied to cmake/ beside it. Not the template's own op_host rules: our
# plans are C++17 and our aclnn sources come from op.json. Tried with tests/cann_toolkit, with no real toolkit.
cmake_minimum_required(VERSION 3.22)

# Our own configure ------------------------------------------------------------------------------------
if(PROJECT_NAME STREQUAL "fla_npu")
  function(fla_add_op)   # an operator has no targets here: fla_finish's program takes them all
  endfunction()
  function(fla_finish)
    add_custom_target(cann COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/opp_package/cann_build.py
      ${CMAKE_BINARY_DIR} ${CMAKE_COMMAND} "CMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
      "CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" "CMAKE_CXX_FLAGS=${CMAKE_CXX_FLAGS}"
      COMMENT "Building the OPP with the CANN toolkit at ${FLA_CANN_HOME}" USES_TERMINAL VERBATIM)
    add_dependencies(cann fla_build_id_source)
    set_property(GLOBAL APPEND PROPERTY FLA_STEPS cann)
  endfunction()
  return()
endif()

# The operator project ---------------------------------------------------------------------------------
project(fla_npu_opp LANGUAGES CXX)
include(ops.cmake)   # FLA_OPS and, in the same order, FLA_OP_TYPES
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_SKIP_RPATH ON)   # no folder of the build machine
file(GLOB host CONFIGURE_DEPENDS op_host/*.cpp)
file(GLOB api CONFIGURE_DEPENDS op_api/*.cpp)
file(GLOB headers op_api/aclnn_*.h)
# On the sources, because the toolkit's own targets may ask for an older standard, and the last one counts.
set_source_files_properties(${host} ${api} PROPERTIES COMPILE_OPTIONS "-std=c++17;-fvisibility=hidden")

# The libraries are opened by path; another vendor's have the same names, and a SONAME that is there wins.
macro(fla_no_soname)
  get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  set_target_properties(${targets} PROPERTIES NO_SONAME ON)
endmacro()

if(ASC_DIR)
  find_package(ASC REQUIRED)
  set(autogen ${CMAKE_BINARY_DIR}/autogen)
  npu_op_package(${vendor_name} TYPE RUN CONFIG ENABLE_SOURCE_PACKAGE True ENABLE_BINARY_PACKAGE True
    ENABLE_CPACK False INSTALL_PATH ${CMAKE_INSTALL_PREFIX})
  npu_op_code_gen(SRC ${host} PACKAGE ${vendor_name} OUT_DIR ${autogen} COMPILE_OPTIONS -std=c++17)
  file(GLOB theirs ${autogen}/aclnn_*)
  file(REMOVE ${theirs})   # ours, with contract and plan, take their place
  npu_op_library(cust_opapi ACLNN ${api} ${FLA_BUILD_ID_SOURCE})
  npu_op_library(cust_op_proto GRAPH ${host} ${autogen}/op_proto.cc ${FLA_BUILD_ID_SOURCE})
  npu_op_library(cust_optiling TILING ${host} ${FLA_BUILD_ID_SOURCE})
  if(FLA_KERNEL_OPTIONS)
    npu_op_kernel_options(fla_kernels ALL OPTIONS ${FLA_KERNEL_OPTIONS})
  endif()
  # No npu_op_kernel_sources: kernels have the names that are looked for, and all of op_kernel/ is shipped.
  npu_op_kernel_library(fla_kernels SRC_BASE ${CMAKE_SOURCE_DIR}/op_kernel TILING_LIBRARY cust_optiling)
  npu_op_package_add(${vendor_name} LIBRARY cust_opapi cust_op_proto cust_optiling fla_kernels)
  npu_op_package_add(${vendor_name} FILES ${headers} TYPE ACLNN)
  fla_no_soname()
  return()
endif()

include(cmake/config.cmake)
include(cmake/func.cmake)
set(vendor packages/vendors/${vendor_name})
set(impl ${vendor}/op_impl/ai_core/tbe)
add_library(intf_pub INTERFACE)
target_compile_options(intf_pub INTERFACE -O2 -fvisibility-inlines-hidden)
target_compile_definitions(intf_pub INTERFACE _GLIBCXX_USE_CXX11_ABI=0)   # as CANN 8.1's libraries
file(GLOB highlevel ${ASCEND_CANN_PACKAGE_PATH}/*/ascendc/include/highlevel_api)   # 8.1: platform_ascendc.h
target_include_directories(intf_pub INTERFACE ${ASCEND_CANN_PACKAGE_PATH}/include ${highlevel}
  ${ASCEND_CANN_PACKAGE_PATH}/include/aclnn ${ASCEND_CANN_PACKAGE_PATH}/include/experiment/platform)
target_link_options(intf_pub INTERFACE -s -Wl,-z,relro -Wl,-z,now -Wl,-Bsymbolic)
target_link_directories(intf_pub INTERFACE ${ASCEND_CANN_PACKAGE_PATH}/lib64)

# 1. Registrations. A macro makes them the source of opbuild, of tiling or of op_proto; the rest is common.
set(registrations ${host})
list(FILTER registrations INCLUDE REGEX "_def\\.cpp$")
list(REMOVE_ITEM host ${registrations})
add_library(fla_host OBJECT ${host})
target_link_libraries(fla_host PRIVATE intf_pub)
add_library(ascend_all_ops SHARED ${registrations})
target_link_libraries(ascend_all_ops PRIVATE fla_host intf_pub exe_graph register tiling_api)
set(op_build ${ASCEND_CANN_PACKAGE_PATH}/toolkit/tools/opbuild/op_build)
add_custom_target(fla_opbuild COMMAND ${CMAKE_COMMAND} -E make_directory ${ASCEND_AUTOGEN_PATH}
  COMMAND ${op_build} $<TARGET_FILE:ascend_all_ops> ${ASCEND_AUTOGEN_PATH})
if("${FLA_STAGE}" STREQUAL "registrations")
  return()
endif()

# 2. Host libraries. With their build go ops-info and the list of operators, made from what opbuild wrote.
set_target_properties(ascend_all_ops PROPERTIES EXCLUDE_FROM_ALL ON)
foreach(kind optiling op_proto)
  add_library(cust_${kind} SHARED ${registrations} ${FLA_BUILD_ID_SOURCE})
  target_link_libraries(cust_${kind} PRIVATE fla_host intf_pub exe_graph register tiling_api
    -Wl,--whole-archive rt2_registry -Wl,--no-whole-archive)
endforeach()
target_compile_definitions(cust_optiling PRIVATE OP_TILING_LIB)
target_link_libraries(cust_optiling PRIVATE nnopbase)
set_target_properties(cust_optiling PROPERTIES OUTPUT_NAME cust_opmaster_rt2.0)
target_compile_definitions(cust_op_proto PRIVATE OP_PROTO_LIB)
target_sources(cust_op_proto PRIVATE ${ASCEND_AUTOGEN_PATH}/op_proto.cc)
set_target_properties(cust_op_proto PROPERTIES OUTPUT_NAME cust_opsproto_rt2.0)
add_library(cust_opapi SHARED ${api} ${FLA_BUILD_ID_SOURCE})
target_link_libraries(cust_opapi PRIVATE intf_pub ascendcl nnopbase)
fla_no_soname()

# 3. Kernels: every dtype combination, both cores, by the toolkit's compile script. Beside a copy of the
# sources it puts what compiles them on line.
set(binary ${CMAKE_CURRENT_BINARY_DIR}/binary)
file(COPY op_kernel/ DESTINATION ${binary}/dynamic)
set(util ${ASCEND_PYTHON_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/util)
add_custom_target(binary)
foreach(soc IN LISTS ASCEND_COMPUTE_UNIT)
  set(info ${CMAKE_CURRENT_BINARY_DIR}/info/aic-${soc}-ops-info.json)
  add_ops_info_target(TARGET ops_info_gen_${soc} OUTPUT ${info}
    OPS_INFO ${ASCEND_AUTOGEN_PATH}/aic-${soc}-ops-info.ini INSTALL_DIR ${impl}/config/${soc})
  add_custom_target(ascendc_bin_${soc}_gen_ops_config
    COMMAND ${util}/insert_simplified_keys.py -p ${binary}/${soc}
    COMMAND ${util}/ascendc_ops_config.py -p ${binary}/${soc} -s ${soc}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${binary}/config/${soc}
    COMMAND mv ${binary}/${soc}/*.json ${binary}/config/${soc})
  add_dependencies(binary ascendc_bin_${soc}_gen_ops_config)
  foreach(op op_type IN ZIP_LISTS FLA_OPS FLA_OP_TYPES)
    add_simple_kernel_compile(OP_TYPE ${op_type} SRC ${CMAKE_SOURCE_DIR}/op_kernel/${op}.cpp
      COMPUTE_UNIT ${soc} JSON_FILE ${info} OUT_DIR ${binary} DYNAMIC_PATH ${binary}/dynamic
      OPTIONS ${FLA_KERNEL_OPTIONS})
  endforeach()
  install(DIRECTORY ${binary}/${soc}/ DESTINATION ${impl}/kernel/${soc})
endforeach()

# 4. The layout of a custom OPP.
set(arch ${CMAKE_SYSTEM_PROCESSOR})
add_npu_support_target(TARGET npu_supported_ops OPS_INFO_DIR ${ASCEND_AUTOGEN_PATH}
  OUT_DIR ${CMAKE_CURRENT_BINARY_DIR}/info INSTALL_DIR ${vendor}/framework/${ASCEND_FRAMEWORK_TYPE})
install(DIRECTORY ${binary}/dynamic DESTINATION ${impl}/${vendor_name}_impl)
install(DIRECTORY ${binary}/config/ DESTINATION ${impl}/kernel/config)
install(TARGETS cust_optiling LIBRARY DESTINATION ${impl}/op_tiling/lib/linux/${arch})
install(FILES $<TARGET_FILE:cust_optiling> DESTINATION ${impl}/op_tiling RENAME liboptiling.so)
install(TARGETS cust_op_proto LIBRARY DESTINATION ${vendor}/op_proto/lib/linux/${arch})
install(FILES ${ASCEND_AUTOGEN_PATH}/op_proto.h DESTINATION ${vendor}/op_proto/inc)
install(TARGETS cust_opapi LIBRARY DESTINATION ${vendor}/op_api/lib)
install(FILES ${headers} DESTINATION ${vendor}/op_api/include)
