//! A function in the place of one of DataFusion's has its name and its types.

/// The methods of a `ScalarUDFImpl` by which a function is found and typed: those of the function in the field `$of`.
macro_rules! declared_as {
    ($of:ident) => {
        fn name(&self) -> &str {
            self.$of.name()
        }

        fn aliases(&self) -> &[String] {
            self.$of.aliases()
        }

        fn signature(&self) -> &datafusion::logical_expr::Signature {
            self.$of.signature()
        }

        fn return_type(
            &self,
            types: &[arrow::datatypes::DataType],
        ) -> datafusion::common::Result<arrow::datatypes::DataType> {
            self.$of.return_type(types)
        }

        fn return_field_from_args(
            &self,
            args: datafusion::logical_expr::ReturnFieldArgs,
        ) -> datafusion::common::Result<arrow::datatypes::FieldRef> {
            self.$of.return_field_from_args(args)
        }
    };
}

pub(super) use declared_as;
