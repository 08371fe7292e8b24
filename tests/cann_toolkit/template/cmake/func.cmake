# SPDX-License-Identifier: Apache-2.0
# Recorded toolkit: the functions of the project template that are used, with the arguments they have.
set(STANDIN_TOOL ${ASCEND_PYTHON_EXECUTABLE} ${ASCEND_CANN_PACKAGE_PATH}/tools/recorded.py)

function(add_ops_info_target)
  cmake_parse_arguments(OPINFO "" "TARGET;OPS_INFO;OUTPUT;INSTALL_DIR" "" ${ARGN})
  if(OPINFO_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "recorded toolkit: add_ops_info_target does not know ${OPINFO_UNPARSED_ARGUMENTS}")
  endif()
  get_filename_component(folder "${OPINFO_OUTPUT}" DIRECTORY)
  add_custom_command(OUTPUT ${OPINFO_OUTPUT}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${ASCEND_PYTHON_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/util/parse_ini_to_json.py
      ${OPINFO_OPS_INFO} ${OPINFO_OUTPUT})
  add_custom_target(${OPINFO_TARGET} ALL DEPENDS ${OPINFO_OUTPUT})
  install(FILES ${OPINFO_OUTPUT} DESTINATION ${OPINFO_INSTALL_DIR})
endfunction()

function(add_npu_support_target)
  cmake_parse_arguments(NPUSUP "" "TARGET;OPS_INFO_DIR;OUT_DIR;INSTALL_DIR" "" ${ARGN})
  if(NPUSUP_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "recorded toolkit: add_npu_support_target does not know ${NPUSUP_UNPARSED_ARGUMENTS}")
  endif()
  set(made ${NPUSUP_OUT_DIR}/npu_supported_ops.json)
  add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${NPUSUP_OUT_DIR}
    COMMAND ${CMAKE_SOURCE_DIR}/cmake/util/gen_ops_filter.sh ${NPUSUP_OPS_INFO_DIR} ${NPUSUP_OUT_DIR})
  add_custom_target(${NPUSUP_TARGET} ALL DEPENDS ${made})
  install(FILES ${made} DESTINATION ${NPUSUP_INSTALL_DIR})
endfunction()

function(add_simple_kernel_compile)
  cmake_parse_arguments(BINCMP "" "OPS_INFO;OUT_DIR;TILING_LIB;OP_TYPE;SRC;COMPUTE_UNIT;JSON_FILE;DYNAMIC_PATH"
    "OPTIONS;CONFIGS" ${ARGN})
  if(BINCMP_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "recorded toolkit: add_simple_kernel_compile does not know ${BINCMP_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT DEFINED BINCMP_OPS_INFO)
    set(BINCMP_OPS_INFO ${ASCEND_AUTOGEN_PATH}/aic-${BINCMP_COMPUTE_UNIT}-ops-info.ini)
  endif()
  set(name ${BINCMP_OP_TYPE}_${BINCMP_COMPUTE_UNIT})
  add_custom_target(${name}
    COMMAND ${ASCEND_PYTHON_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/util/ascendc_compile_kernel.py
      --op-name=${BINCMP_OP_TYPE}
      --src-file=${BINCMP_SRC}
      --compute-unit=${BINCMP_COMPUTE_UNIT}
      --compile-options=\"${BINCMP_OPTIONS}\"
      --debug-config=\"${BINCMP_CONFIGS}\"
      --config-ini=${BINCMP_OPS_INFO}
      --tiling-lib=$<TARGET_FILE:cust_optiling>
      --output-path=${BINCMP_OUT_DIR}
      --dynamic-dir=${BINCMP_DYNAMIC_PATH}
      --enable-binary=\"${ENABLE_BINARY_PACKAGE}\"
      --json-file=${BINCMP_JSON_FILE}
      --build-tool=$(MAKE))
  add_dependencies(${name} cust_optiling ops_info_gen_${BINCMP_COMPUTE_UNIT})
  add_dependencies(ascendc_bin_${BINCMP_COMPUTE_UNIT}_gen_ops_config ${name})
endfunction()
